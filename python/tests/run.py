"""Tests of the Python package and its examples: python3 python/tests/run.py [PROGRAM [PART OF A NAME…]]

Runs the tests of this file and of test_*.py beside it. NumPy is enough; a test is skipped where another package is missing.
"""
import concurrent.futures
import os
import pathlib
import re
import shlex
import signal
import subprocess
import sys
import time
import types
import unittest
import warnings
from unittest import mock

import numpy

from rig import ROOT, SMALL, VIRTUAL, InFolder as Folder, needs

import gradlag

EXAMPLES = ROOT / "examples"


def command(path, prefix=""):
    return f"{prefix}{shlex.quote(sys.executable)} {shlex.quote(str(path))}"


class InFolder(Folder):
    def train(self, example, **settings):
        return gradlag.run(model="external", model__command=command(EXAMPLES / example), **settings)

    def program(self, body, train="64", parameters="{'w': numpy.zeros(3, numpy.float32)}", classes=0, evaluation="0.0, 0, None",
                serve="lambda request: Own()"):
        pathlib.Path("own.py").write_text("import numpy\nimport gradlag\n\nclass Own:\n"
                                          f"    samples, classes = {{'train': {train}, 'validation': 0, 'test': 8}}, {classes}\n"
                                          f"    def parameters(self): return {parameters}\n"
                                          f"    def evaluate(self, parameters, split, samples): return {evaluation}\n"
                                          f"    def gradient(self, parameters, samples, rng):\n        {body}\n\n"
                                          f"gradlag.serve({serve})\n")
        return gradlag.run(model="external", model__command=command("own.py"), updates=5, **VIRTUAL)


class Examples(InFolder):
    def check(self, example, **settings):
        """Trains in both modes and on a virtual cluster, and replays."""
        rows = [self.train(example, mode=mode, workers=1, **settings) for mode in ("async", "sync")]
        rows.append(self.train(example, mode="async", workers=1, **VIRTUAL, **settings))
        self.assertEqual(len({row["parameters_sha256"] for row in rows}), 1)
        for more in ({"damping": "inverse"}, VIRTUAL):
            row = self.train(example, mode="async", workers=3, **more, **settings)
            subprocess.run([os.environ["GRADLAG"], "replay", str(row["id"])], check=True, stdout=subprocess.DEVNULL)
        return rows[0]

    def test_softmax_in_numpy(self):
        self.assertGreater(self.check("softmax_numpy.py", updates=300)["final_accuracy"], 0.6)

    def test_the_numpy_model_of_the_documentation(self):
        page = (ROOT.parent / "docs" / "external-models.md").read_text()
        pathlib.Path("own.py").write_text(re.search(r"## In NumPy.*?```python\n(.*?)```", page, re.S)[1])
        self.assertGreater(self.check(pathlib.Path("own.py").resolve(), updates=300)["final_accuracy"], 0.9)

    @needs("torch")
    def test_resnet_in_torch(self):
        self.check("resnet_torch.py", updates=6, batch=16, model__samples=400, model__width=4)

    @needs("torch")
    def test_gpt_in_torch(self):
        self.check("gpt_torch.py", updates=6, batch=8, model__width=16, model__context=16)

    @needs("torch")
    def test_muon_leaves_embeddings_and_head_to_adamw(self):
        text = (EXAMPLES / "gpt_torch.py").read_text()
        variants = {"none": ", head=None", "blocks": ', head="blocks"', "head": ', head="head"'}
        for name, head in variants.items():
            pathlib.Path(f"{name}.py").write_text(text.replace(', head="head"', head))
        rows = {name: gradlag.run(model="external", model__command=command(f"{name}.py"), optimizer="muon", updates=3, batch=8,
                                  model__width=16, model__context=16, **VIRTUAL) for name in variants}
        self.assertEqual(len({row["parameters_sha256"] for row in rows.values()}), len(variants))
        pathlib.Path("wrong.py").write_text(text.replace('head="head"', 'head="hat"'))
        with self.assertRaises(gradlag.Error) as caught:
            gradlag.run(model="external", model__command=command("wrong.py"), updates=1, **VIRTUAL)
        self.assertEqual(caught.exception.code, 3)
        self.assertIn("hat", str(caught.exception))


@needs("zmq")
class ForeignWorker(InFolder):
    MODEL = {"model": "external", "model__command": command(EXAMPLES / "softmax_numpy.py"), "updates": 100, "mode": "async",
             "workers": 1}

    def test_its_run_has_the_bits_of_our_worker_and_replays(self):
        settings = list(gradlag.results.arguments(self.MODEL))
        with open("server.txt", "w") as out:
            server = subprocess.Popen([os.environ["GRADLAG"], "server", *settings], stderr=out)
        self.addCleanup(server.kill)
        found, until = None, time.monotonic() + 60
        while not found and time.monotonic() < until and server.poll() is None:
            text = pathlib.Path("server.txt").read_text()
            found = re.search(r"(tcp://\S+) for .*(run_token=\w+).*settings hash (\w+)", text, re.S)
            time.sleep(0.05)
        self.assertTrue(found, text)
        subprocess.run([sys.executable, EXAMPLES / "foreign_worker.py", found[1], found[2], f"settings_hash={found[3]}"], check=True,
                       stdout=subprocess.DEVNULL, timeout=60)
        self.assertEqual(server.wait(timeout=60), 0)
        subprocess.run([os.environ["GRADLAG"], "replay", "1"], check=True, stdout=subprocess.DEVNULL)
        row = gradlag.run(**self.MODEL)
        hashes = gradlag.select("SELECT DISTINCT parameters_sha256 FROM run")
        self.assertEqual((row["id"], len(hashes)), (2, 1))

    def test_its_batches_are_those_of_the_documentation(self):
        sys.path.insert(0, str(EXAMPLES))
        import foreign_worker
        shard = foreign_worker.Shard(10, seed=1, worker=1, workers=2, batch=3)
        self.assertEqual([shard.samples(k) for k in range(4)], [[3, 9, 5], [1, 7, 5], [7, 9, 3], [1, 1, 9]])


class OwnModels(InFolder):
    def test_a_pure_gradient_trains(self):
        row = self.program("return 1.0, 0, {'w': parameters['w'] + rng.normal(size=3)}")
        self.assertEqual(row["status"], "finished")

    def test_numbers_may_be_those_of_numpy_and_without_dimensions(self):
        row = self.program("return 1.0, 0, {'w': numpy.float32(1)}", train="numpy.arange(64).size + numpy.int64(0)", parameters="{'w': 0.0}")
        self.assertEqual(row["status"], "finished")
        self.expect(3, "(2,)", "return 1.0, 0, {'w': numpy.zeros(2)}", parameters="{'w': 0.0}")

    def expect(self, code, named, body, **more):
        with self.assertRaises(gradlag.Error) as caught:
            self.program(body, **more)
        self.assertEqual(caught.exception.code, code)
        self.assertIn(named, str(caught.exception))

    def test_an_impure_gradient_is_an_error(self):
        self.expect(3, "ValueError", "return 1.0, 0, {'w': numpy.random.normal(size=3)}")

    def test_a_gradient_may_do_without_random_numbers(self):
        source = (EXAMPLES / "softmax_numpy.py").read_text()
        self.assertEqual(source.count("parameters, samples):"), 1)
        hashes = set()
        for arguments in ("parameters, samples):", "parameters, samples, rng):", "parameters, samples, *more):"):
            pathlib.Path("own.py").write_text(source.replace("parameters, samples):", arguments))
            hashes.add(gradlag.run(model="external", model__command=command("own.py"), updates=20, **VIRTUAL)["parameters_sha256"])
        self.assertEqual(len(hashes), 1)

    def test_a_write_to_parameters_is_an_error(self):
        self.expect(3, "read-only", "parameters['w'][0] = 1")

    def test_a_program_may_have_its_vectors_copied(self):
        source = (EXAMPLES / "softmax_numpy.py").read_text()
        hashes = set()
        for copy in (False, True):
            pathlib.Path("own.py").write_text(source.replace("class Softmax:", f"class Softmax:\n    copy = {copy}"))
            for mode in ("async", "sync"):
                row = gradlag.run(model="external", model__command=command("own.py"), updates=50, mode=mode, workers=1)
                hashes.add(row["parameters_sha256"])
        self.assertEqual(len(hashes), 1)

    def test_a_wrong_shape_is_an_error(self):
        self.expect(3, "(4,)", "return 1.0, 0, {'w': numpy.zeros(4)}")

    def test_a_missing_parameter_is_an_error(self):
        self.expect(3, "'w'", "return 1.0, 0, {}")

    def test_a_model_without_parameters_is_an_error(self):
        for values, named in (("{}", "parameters()"), ("{'w': []}", "parameters()"), ("[1.0]", "list")):
            with self.subTest(values=values):
                self.expect(3, named, "return 1.0, 0, {}", parameters=values)

    def test_a_wrong_return_value_names_the_method_and_its_line(self):
        gradient = "return 1.0, 0, {'w': parameters['w']}"
        for body in ("return 1.0, {'w': parameters['w']}", "pass", "return 1.0, 0.5, {'w': parameters['w']}", "return [1.0, 2.0], 0, {}",
                     "return 1.0, 0, None", "return 1.0, 0, [1.0]", "return 1.0, 0, {}"):
            with self.subTest(body=body):
                self.expect(3, "gradient()", body)
                self.expect(3, "own.py, line 8", body)
        for evaluation in ("0.0, 0", "None", "0.0, None, None", "0.0, 0, [0.5]"):
            with self.subTest(evaluation=evaluation):
                self.expect(3, "evaluate()", gradient, classes=2, evaluation=evaluation)
                self.expect(3, "own.py, line 7", gradient, classes=2, evaluation=evaluation)

    def test_serve_takes_a_class_or_a_function_of_the_request(self):
        for serve, named in (("Own()", "gradlag.serve(Own)"), ("Own", "__init__"), ("lambda request: None", "NoneType")):
            with self.subTest(serve=serve):
                self.expect(3, named, "pass", serve=serve)
                self.expect(3, "own.py, line 11", "pass", serve=serve)

    def test_without_classes_correct_may_be_none(self):
        row = self.program("return 1.0, None, {'w': parameters['w']}", evaluation="1.0, None, None")
        self.assertEqual((row["status"], row["final_accuracy"]), ("finished", None))
        self.expect(3, "gradient()", "return 1.0, None, {'w': parameters['w']}", classes=2)

    def test_an_exception_ends_the_run(self):
        self.expect(3, "own.py, line 9", "return parameters['v']")

    def test_an_exception_of_a_rank_is_in_the_error(self):
        pathlib.Path("failing.py").write_text((EXAMPLES / "softmax_numpy.py").read_text().replace("return loss, (logs", "raise OSError('unread') #", 1))
        with self.assertRaises(gradlag.Error) as caught:
            gradlag.run(model="external", model__command=command("failing.py"), mode="sync", workers=2, updates=5)
        self.assertIn("unread", str(caught.exception))

    def test_what_is_not_utf8_after_it_is_cut_can_be_read(self):
        self.expect(3, "ValueError", "raise ValueError('ö' * 1000)")
        self.expect(3, "ValueError", "raise ValueError('.' + 'ö' * 1000)")
        self.assertEqual(len(gradlag.runs()), 2)

    def test_samples_that_are_no_numbers_are_an_error(self):
        for train in ("3.5", "None", "[64]"):
            with self.subTest(train=train):
                self.expect(3, "samples", "return 1.0, 0, {'w': parameters['w']}", train=train)

    def test_unknown_names_and_shares_of_classes_are_errors(self):
        gradient = "return 1.0, 0, {'w': parameters['w']}"
        for named, change in (("'val'", {"train": "64, 'val': 20"}), ("3.7", {"classes": 3.7}), ("'v'", {"body": "return 1.0, 0, {'w': parameters['w'], 'v': 0}"})):
            with self.subTest(named=named):
                self.expect(3, named, **{"body": gradient, **change})

    def test_a_loss_that_is_not_finite_is_divergence(self):
        self.expect(6, "loss", "return float('nan'), 0, {'w': parameters['w']}")

    def test_an_option_that_is_neither_true_nor_false_is_an_error(self):
        source = (EXAMPLES / "softmax_numpy.py").read_text()
        pathlib.Path("own.py").write_text(source.replace("serve(Softmax)", "serve(lambda r: (r.option('flag', False), Softmax(r))[1])"))
        settings = {"model": "external", "model__command": command("own.py"), "updates": 1, **VIRTUAL}
        self.assertEqual(gradlag.run(model__flag="yes", **settings)["status"], "finished")
        with self.assertRaises(gradlag.Error) as caught:
            gradlag.run(model__flag="on", **settings)
        self.assertEqual(caught.exception.code, 3)
        self.assertIn("model.flag", str(caught.exception))

    def test_an_option_with_a_list_as_default_is_an_error(self):
        source = (EXAMPLES / "softmax_numpy.py").read_text()
        pathlib.Path("own.py").write_text(source.replace("serve(Softmax)", "serve(lambda r: (r.option('sizes', [64]), Softmax(r))[1])"))
        with self.assertRaises(gradlag.Error) as caught:
            gradlag.run(model="external", model__command=command("own.py"), updates=1, **VIRTUAL)
        self.assertEqual(caught.exception.code, 3)
        self.assertIn("sizes", str(caught.exception))

    def test_an_unknown_key_is_an_error(self):
        with self.assertRaises(gradlag.Error) as caught:
            self.train("softmax_numpy.py", model__featurs=3)
        self.assertEqual(caught.exception.code, 3)
        self.assertIn("model.featurs", str(caught.exception))


@needs("torch")
class TorchAccuracy(InFolder):
    def accuracy(self, targets):
        """The accuracy of a network that predicts 0 for each token."""
        pathlib.Path("own.py").write_text("import torch\nimport gradlag.torch\n"
                                          "def first(x): return torch.nn.functional.one_hot(torch.zeros_like(x), 2).movedim(-1, 1).float()\n"
                                          "class Net(torch.nn.Module):\n"
                                          "    def __init__(self):\n        super().__init__()\n        self.w = torch.nn.Parameter(torch.ones(1))\n"
                                          "    def forward(self, x): return first(x) * (1 + self.w * self.w)\n"
                                          f"pairs = torch.utils.data.TensorDataset(torch.zeros(3, 4, dtype=torch.int64), torch.tensor({targets}))\n"
                                          "gradlag.torch.serve(lambda request: Net(), lambda request: {'train': pairs, 'test': pairs}, classes=2)\n")
        return gradlag.run(model="external", model__command=command("own.py"), updates=2, batch=3, **VIRTUAL)["final_accuracy"]

    def test_the_share_of_right_tokens_is_rounded_to_the_nearest_sample(self):
        self.assertAlmostEqual(self.accuracy([[0, 0, 0, 0], [0, 0, 0, 1], [1, 1, 1, 1]]), 2 / 3)  # 7 of 12 tokens are 1.75 of 3 samples

    def test_targets_that_the_loss_ignores_do_not_count(self):
        self.assertAlmostEqual(self.accuracy([[0, -100, -100, -100], [0, 0, -100, -100], [0, 1, 1, -100]]), 2 / 3)  # 4 of 6


@needs("torch")
class TorchEvaluation(InFolder):
    FROZEN = ("    def train(self, mode=True):\n        super().train(mode)\n        self[1].running_mean.fill_(0.5)\n        self[1].eval()\n"
              "        return self\n")
    SAMPLES = "TensorDataset(torch.randn(90, 4, generator=torch.Generator().manual_seed(1)), torch.arange(90) % 3)"
    NOISY = ("class Noisy(torch.utils.data.Dataset):\n    def __len__(self): return 90\n"
             "    def __getitem__(self, i): return torch.randn(4) + i % 3, i % 3\n")

    def rows(self, train, samples, more=""):
        """One worker in each mode, with evaluations between its updates."""
        pathlib.Path("own.py").write_text(f"import torch\nfrom torch.utils.data import TensorDataset\nimport gradlag.torch\n{more}"
                                          "class Net(torch.nn.Sequential):\n    def __init__(self):\n"
                                          "        super().__init__(torch.nn.Linear(4, 6), torch.nn.BatchNorm1d(6), torch.nn.Linear(6, 3))\n"
                                          f"{train}data = {samples}\n"
                                          "gradlag.torch.serve(lambda request: Net(), lambda request: {'train': data, 'test': data})\n")
        settings = {"model": "external", "model__command": command("own.py"), "updates": 20, "batch": 9, "evaluate_every": 0.3, "workers": 1}
        return [gradlag.run(**settings, **mode) for mode in ({"mode": "async"}, {"mode": "sync"}, VIRTUAL)]

    def test_frozen_batch_norm_keeps_its_statistics(self):
        rows = self.rows(self.FROZEN, self.SAMPLES)
        self.assertEqual(len({row["parameters_sha256"] for row in rows}), 1)

    def test_random_numbers_depend_on_nothing_but_the_samples(self):
        for training in ("", "    def forward(self, x): return super().forward(x + torch.randn_like(x))\n"):
            rows = self.rows(training, self.SAMPLES if training else "Noisy()", self.NOISY)
            self.assertEqual(len({(row["parameters_sha256"], row["final_loss"]) for row in rows}), 1)


@needs("torch")
class TorchModel(unittest.TestCase):
    def make(self, module, data, loss=None, classes=None):
        import gradlag.torch
        return gradlag.torch._Model(types.SimpleNamespace(threads=1, seed=1), lambda _: module, lambda _: {"train": data}, loss, classes, None)

    def test_a_dataset_keeps_its_own_index(self):
        import torch

        class Shifted(torch.utils.data.TensorDataset):
            def __getitem__(self, index):
                inputs, target = super().__getitem__(index)
                return inputs + 5, target

        tensors = torch.zeros(4, 2), torch.arange(4)
        for kind, value in ((torch.utils.data.TensorDataset, 0), (Shifted, 5)):
            inputs, targets = self.make(torch.nn.Linear(2, 4), kind(*tensors))._batch("train", numpy.array([3, 1]))
            self.assertEqual((inputs.tolist(), targets.tolist()), ([[value] * 2] * 2, [3, 1]))

    def test_accuracy_needs_a_tensor(self):
        import torch
        data = torch.utils.data.TensorDataset(torch.zeros(4, 3), torch.arange(4) % 2)
        module = torch.nn.GRU(3, 2)  # returns a tuple
        for classes in (None, 2):
            with self.subTest(classes=classes), self.assertRaises(TypeError) as caught:
                self.make(module, data, torch.nn.functional.cross_entropy, classes)._compute("train", [0, 1])
            self.assertIn("GRU", str(caught.exception))
        model = self.make(module, data, lambda output, target: torch.nn.functional.cross_entropy(output[0], target), 0)
        self.assertEqual(model._compute("train", [0, 1])[1:], (0, None))


@needs("torch")
class TorchDevice(unittest.TestCase):
    def test_calls_of_cuda_are_of_the_device_of_the_module(self):
        import torch
        import gradlag.torch

        class OnGpu(torch.nn.Linear):  # its parameters are on the CPU, but parameters() names a GPU
            def parameters(self, recurse=True):
                return iter([types.SimpleNamespace(requires_grad=True, device=torch.device("cuda:1"))])

        with mock.patch.object(torch, "cuda") as cuda:
            model = gradlag.torch._Model(types.SimpleNamespace(threads=1, seed=1), lambda _: OnGpu(2, 1), lambda _: {"train": [(0, 0)]}, None, 0, None)
            vectors = [{name: numpy.zeros(p.shape, numpy.float32) for name, p in model.trained.items()} for _ in range(2)]
            model.bind(*vectors)
            model._store()
        calls = [name for name, _, _ in cuda.mock_calls if name in ("set_device", "cudart().cudaHostRegister", "synchronize")]
        self.assertEqual(calls, ["set_device", "cudart().cudaHostRegister", "cudart().cudaHostRegister", "synchronize"])
        cuda.set_device.assert_called_once_with(torch.device("cuda:1"))


@needs("torch")
class TorchMistakes(InFolder):
    def check(self, named, data, model="torch.nn.Linear(3, 2)", code=3):
        pathlib.Path("own.py").write_text("import torch\nimport gradlag.torch\n"
                                          "pairs = torch.utils.data.TensorDataset(torch.zeros(9, 3), torch.zeros(9, dtype=torch.int64))\n"
                                          f"gradlag.torch.serve(lambda request: {model}, lambda request: {data})\n")
        with self.assertRaises(gradlag.Error) as caught:
            gradlag.run(model="external", model__command=command("own.py"), updates=2, **VIRTUAL)
        self.assertEqual(caught.exception.code, code)
        self.assertIn(named, str(caught.exception))

    def test_a_mistake_is_named(self):
        self.check("'val'", "{'train': pairs, 'val': pairs}")
        self.check("'train'", "{'test': pairs}")
        self.check("tuple", "(pairs, pairs)")
        self.check("DataLoader", "{'train': torch.utils.data.DataLoader(pairs)}")
        self.check("(input, target)", "{'train': list(range(9))}")
        self.check("ReLU", "{'train': pairs}", "torch.nn.ReLU()")
        self.check("'1'", "{'train': pairs}", "torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.InstanceNorm1d(2, track_running_stats=True))")
        self.check("bfloat16", "{'train': pairs}", "torch.nn.Linear(3, 2).bfloat16()")
        writes = "torch.nn.Embedding(9, 2, max_norm=0.1)"
        self.check("signal 11", "{'train': torch.utils.data.TensorDataset(torch.arange(9), torch.arange(9) % 2)}", writes, code=4)


class Results(InFolder):
    def test_the_end_of_the_caller_stops_the_run_and_keeps_its_results(self):
        settings = {"dataset": "gaussian", "model": "softmax", "dataset.samples": 1000, "mode": "async", "workers": 2, "epochs": 100000}
        ends = [(os.killpg, signal.SIGINT), (os.kill, signal.SIGINT), (os.kill, signal.SIGKILL)]  # the group, as a terminal does; then Python alone
        for end, number in ends:
            caller = self.call(f"gradlag.run(checkpoint='{{run}}.safetensors', **{settings})")
            until = time.monotonic() + 60
            while not self.status("running", "JOIN push ON push.run_id = run.id") and time.monotonic() < until:
                time.sleep(0.1)
            end(caller.pid, number)
            self.assertNotEqual(caller.wait(timeout=25), 0)  # less than STOP_S: one signal is enough
            while number == signal.SIGKILL and self.status("running") and time.monotonic() < until:
                time.sleep(0.1)
            self.assertFalse(self.status("running"))
        self.assertEqual(self.status("stopped"), [1, 2, 3])
        self.assertTrue(all(os.path.exists(f"{run}.safetensors") for run in (1, 2, 3)))

    def call(self, statement):
        caller = subprocess.Popen([sys.executable, "-c", f"import gradlag; {statement}"], stderr=subprocess.DEVNULL, start_new_session=True,
                                  preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL))  # tests in the background ignore it
        self.addCleanup(caller.kill)
        return caller

    def stand_in(self, body):
        """A program that is called in place of gradlag."""
        pathlib.Path("stand-in").write_text(f"#!{sys.executable}\nimport os, signal, sys, time\n{body}\n")
        os.chmod("stand-in", 0o700)
        change = mock.patch.dict(os.environ, GRADLAG=os.path.abspath("stand-in"))
        change.start()
        self.addCleanup(change.stop)

    def wait_for(self, path, size):
        until = time.monotonic() + 20
        while time.monotonic() < until and not (os.path.exists(path) and os.path.getsize(path) >= size):
            time.sleep(0.02)

    def test_each_interrupt_reaches_the_program_once(self):
        self.stand_in("def count(*_):\n    print('x', end='', file=open('signals', 'a'))\n    'xx' in open('signals').read() and sys.exit(5)\n"
                      "signal.signal(signal.SIGINT, count)\nopen('signals', 'w').close()\nwhile True: time.sleep(0.05)")
        for end in (os.kill, os.killpg):
            caller = self.call("gradlag.run()")
            for count in range(2):
                self.wait_for("signals", count)
                end(caller.pid, signal.SIGINT)
                self.wait_for("signals", count + 1)
                time.sleep(0.2)
                self.assertEqual(os.path.getsize("signals"), count + 1)
            self.assertEqual(caller.wait(timeout=20), -signal.SIGINT)
            os.unlink("signals")

    def test_a_program_that_is_killed_is_named(self):
        self.stand_in("os.kill(os.getpid(), signal.SIGKILL)")
        with self.assertRaises(gradlag.Error) as caught:
            gradlag.run()
        self.assertEqual(caught.exception.code, -signal.SIGKILL)
        self.assertIn("signal 9", str(caught.exception))

    def test_a_program_that_is_killed_while_it_prints_is_named(self):
        self.stand_in("print('{\"id\": 1, ', end='', flush=True)\nos.kill(os.getpid(), signal.SIGKILL)")
        with self.assertRaises(gradlag.Error) as caught:
            gradlag.run()
        self.assertEqual(caught.exception.code, -signal.SIGKILL)
        self.assertIsNone(caught.exception.run)

    def test_warnings_of_the_program_are_warnings(self):
        self.stand_in("print('gradlag: warning: no spread\\nown.py: warning: other\\ngradlag worker 2: warning: late', file=sys.stderr)\nprint('{}')")
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            self.assertEqual(gradlag.run(), {})
        self.assertEqual([(str(each.message), each.filename) for each in caught], [("no spread", __file__), ("late", __file__)])

    def test_settings_as_gradlag_reads_them(self):
        settings = {"seed": 1, "pace__mean_ms": 2.5, "overlap": True, "checkpoint": None, "resume": numpy.bool_(False), "arm": "True"}
        self.assertEqual(list(gradlag.results.arguments(settings)), ["seed=1", "pace.mean_ms=2.5", "overlap=true", "resume=false", "arm=True"])

    def test_results_can_be_read_without_the_c_library(self):
        gradlag.run(updates=1, **SMALL)
        script = "import sys; sys.modules['ctypes'] = None; import gradlag; print(len(gradlag.results.rows('SELECT id FROM run')))"  # as on Windows
        self.assertEqual(subprocess.run([sys.executable, "-c", script], stdout=subprocess.PIPE).stdout, b"1\n")

    def test_a_statement_without_columns_is_an_error(self):
        gradlag.run(updates=1, **SMALL)
        for read in (gradlag.select, gradlag.results.rows):
            with self.assertRaises(gradlag.Error) as caught:
                read("PRAGMA foreign_keys = ON")
            self.assertEqual(caught.exception.code, 2)

    def status(self, status, more=""):
        try:
            return [row["id"] for row in gradlag.results.rows(f"SELECT DISTINCT run.id FROM run {more} WHERE status = ?", parameters=(status,))]
        except gradlag.Error:  # the file is not there yet, or still empty
            return []

    def test_what_is_no_results_file_is_an_error(self):
        pathlib.Path("empty.db").touch()
        pathlib.Path("text.db").write_text("no database, but longer than the header of one" * 10)
        for path in ("empty.db", "text.db", "missing.db", "."):
            with self.assertRaises(gradlag.Error) as caught:
                gradlag.runs(path)
            self.assertEqual(caught.exception.code, 7)

    def test_a_run_returns_its_row(self):
        row = gradlag.run(mode="async", workers=2, damping="inverse", pace__mean_ms=3, updates=30, **SMALL)
        self.assertEqual((row["id"], row["workers"], row["damping"], row["updates"]), (1, 2, "inverse", 30))

    def test_a_wrong_key_is_an_error(self):
        with self.assertRaises(gradlag.Error) as caught:
            gradlag.run(wrokers=2)
        self.assertEqual(caught.exception.code, 2)
        self.assertIn("wrokers", str(caught.exception))

    def test_tables(self):
        for seed in (1, 2):
            gradlag.run(seed=seed, updates=30, **SMALL)
        self.assertEqual(len(gradlag.runs()), 2)
        self.assertEqual(len(gradlag.query("runs")), 2)
        self.assertEqual(len(gradlag.select("SELECT id FROM run WHERE seed = ?", parameters=(2,))), 1)


def parts(suite):
    """Patterns of names that together match each test of the suite once: a class, or a test of a class with long tests."""
    found = {}
    for test in suite:
        if isinstance(test, unittest.TestSuite):
            found.update(dict.fromkeys(parts(test)))
        else:
            found[".".join(test.id().split(".")[-2:]) if hasattr(test, "LONG") else f".{type(test).__name__}."] = None
    return sorted(found, key=lambda pattern: pattern[0] == ".")  # long ones first


def in_parallel(patterns):
    """Runs the tests of each pattern in a process of its own, one process for each core; returns the sums of the three counts."""
    def run(pattern):
        command = [sys.executable, __file__, os.environ["GRADLAG"], pattern]
        try:
            done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, stdin=subprocess.DEVNULL,
                                  timeout=900)
        except subprocess.TimeoutExpired as late:
            print(f"{pattern} took more than 900 s:\n{late.stdout}", flush=True)
            return [0, 1, 0]
        print(done.stdout, end="", flush=True)
        counts = re.search(r"^(\d+) passed, (\d+) failed, (\d+) skipped$", done.stdout, re.M)
        return [int(n) for n in counts.groups()] if counts else [0, 1, 0]
    with concurrent.futures.ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
        return [sum(column) for column in zip(*pool.map(run, patterns))]


def here(tests):
    result = unittest.TextTestRunner(verbosity=2).run(tests)
    bad = len(result.failures) + len(result.errors)
    return result.testsRun - bad - len(result.skipped), bad, len(result.skipped)


if __name__ == "__main__":
    if len(sys.argv) > 1:
        os.environ["GRADLAG"] = os.path.abspath(sys.argv[1])
    loader = unittest.TestLoader()
    loader.testNamePatterns = [f"*{pattern}*" for pattern in sys.argv[2:]] or None
    others = loader.discover(os.path.dirname(os.path.abspath(__file__)))  # test_*.py beside this file
    tests = unittest.TestSuite([others, loader.loadTestsFromModule(sys.modules["__main__"])])
    passed, failed, skipped = here(tests) if len(sys.argv) != 2 else in_parallel(parts(tests))
    print(f"{passed} passed, {failed} failed, {skipped} skipped")
    sys.exit(failed > 0)
