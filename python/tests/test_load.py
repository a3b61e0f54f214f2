"""Checkpoints in PyTorch: loaded networks repeat the recorded evaluations. run.py runs these tests; it sets up the paths."""
import importlib.util
import json
import os
import pathlib
import shlex
import sqlite3
import struct
import subprocess
import sys
import unittest

import numpy

from rig import InFolder

import gradlag
from gradlag import checkpoint

HAS_TORCH = importlib.util.find_spec("torch") is not None
# Updates that raise the accuracy well above chance.
UPDATES = {"cnn": 20, "resnet8": 30, "resnet20": 30}
OPTIONS = {"wide": {"model__width": 256}}

OWN = '''
import torch

class Net(torch.nn.Sequential):
    def __init__(self):
        super().__init__(torch.nn.Linear(4, 8), torch.nn.BatchNorm1d(8), torch.nn.ReLU(), torch.nn.Linear(8, 3))

def samples(count):
    labels = torch.arange(count) % 3
    return torch.utils.data.TensorDataset(torch.randn(count, 4, generator=torch.Generator().manual_seed(count)) + labels[:, None], labels)

if __name__ == "__main__":
    import gradlag.torch
    gradlag.torch.serve(lambda request: Net(), lambda request: {"train": samples(300), "test": samples(90)})
'''


def write(path, header, data):
    header = json.dumps(header).encode()
    pathlib.Path(path).write_bytes(struct.pack("<Q", len(header)) + header + data)


def write_without(path, unwanted):
    """Removes the tensors whose names contain `unwanted` from the checkpoint."""
    tensors, metadata = checkpoint.read(path)
    header, data = {"__metadata__": metadata}, b""
    for name, tensor in tensors.items():
        if unwanted not in name:
            header[name] = {"dtype": "F32", "shape": tensor.shape, "data_offsets": [len(data), len(data) + tensor.nbytes]}
            data += tensor.tobytes()
    write(path, header, data)


class Checkpoints(InFolder):
    def test_types(self):
        write("x", {"a": {"dtype": "F16", "shape": [2], "data_offsets": [0, 4]}, "b": {"dtype": "BF16", "shape": [1, 1], "data_offsets": [4, 6]},
                    "__metadata__": {"key": "value"}}, numpy.array([1.5, -2], "<f2").tobytes() + b"\xc0\x3f")
        tensors, metadata = checkpoint.read("x")
        self.assertEqual((tensors["a"].tolist(), tensors["b"].tolist(), metadata), ([1.5, -2], [[1.5]], {"key": "value"}))

    def test_they_are_read_after_import_gradlag_alone(self):
        write("x", {"a": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}}, bytes(4))
        script = "import sys, gradlag; assert 'numpy' not in sys.modules; print(*gradlag.checkpoint.read('x')[0])"
        self.assertEqual(subprocess.run([sys.executable, "-c", script], stdout=subprocess.PIPE).stdout, b"a\n")

    def test_a_damaged_file_is_an_error(self):
        entry = {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}
        for header, data in (({"a": entry}, bytes(7)), ({"a": {**entry, "shape": [3]}}, bytes(8)), ({"a": {**entry, "dtype": "F3"}}, bytes(8)),
                             ({"a": {**entry, "data_offsets": [-8, 0]}}, bytes(8)), ({"a": 1}, b""), ([], b"")):
            write("x", header, data)
            with self.subTest(header=header):
                self.assertRaises(ValueError, checkpoint.read, "x")
        for content in (b"", b"\x07", struct.pack("<Q", 1 << 60) + b"{}", struct.pack("<Q", 2) + b"{"):
            pathlib.Path("x").write_bytes(content)
            with self.subTest(content=content):
                self.assertRaises(ValueError, checkpoint.read, "x")

    def test_unknown_samples_are_an_error(self):
        for arguments in (("gaussian",), ("fashion-mnist", "tests"), ("cifar10",)):
            self.assertRaises(ValueError, gradlag.samples, *arguments)


@unittest.skipUnless(HAS_TORCH, "no PyTorch")
class LoadedNetworks(InFolder):
    LONG = True  # run.py runs each test in a process of its own

    def setUp(self):
        import torch
        super().setUp()
        torch.set_num_threads(1)  # on busy processors the threads of a pool wait for each other

    def trained(self, model, **settings):
        return gradlag.run(**{"mode": "async", "workers": 1, "model": model, "updates": UPDATES.get(model, 60), "evaluate_every": 0,
                              "warmup_epochs": 0, "checkpoint": "at.safetensors", **settings})

    def check(self, module, row, inputs, labels):
        """The accuracy is the recorded one within 2 of 10 000 samples. The loss shows smaller differences."""
        import torch
        labels = torch.as_tensor(labels)
        with torch.no_grad():
            output = torch.cat([module(part) for part in torch.as_tensor(inputs).split(500)])
        labels, output = labels.reshape(-1), output.reshape(-1, output.shape[-1])
        correct = int((output.argmax(dim=1) == labels).sum())
        self.assertLessEqual(abs(correct - round(row["final_accuracy"] * len(labels))), 2 * len(labels) / 10000)
        loss, = sqlite3.connect("results.db").execute("SELECT test_loss FROM evaluation WHERE run_id = ?", (row["id"],)).fetchone()
        self.assertAlmostEqual(torch.nn.functional.cross_entropy(output, labels).item(), loss, delta=1e-4 * loss)

    def test_every_built_in_model_repeats_its_accuracy(self):
        listed = subprocess.run([os.environ["GRADLAG"], "list", "models"], check=True, stdout=subprocess.PIPE, text=True).stdout
        names = {line.split()[0] for line in listed.splitlines() if line[:1].isalpha()} - {"external", "gpt"}
        self.assertGreaterEqual(names, {"softmax", "resnet20"})
        inputs, labels = gradlag.samples("fashion-mnist")
        for name in sorted(names):
            with self.subTest(model=name):
                row = self.trained(name, **OPTIONS.get(name, {}))
                self.assertGreater(row["final_accuracy"], 0.15)
                self.check(gradlag.load("at.safetensors"), row, inputs, labels)
                os.unlink("at.safetensors")

    def test_a_gpt_repeats_its_accuracy(self):
        text = numpy.random.default_rng(1).choice(list(b"aaab "), 60000).astype(numpy.uint8)
        text[2::3] = text[1:-1:3]
        text.tofile("text")
        data = {"dataset": "text", "dataset__path": "text", "dataset__vocabulary": 128, "optimizer": "adamw", "lr": 0.01}
        for settings in ({}, {"model__layers": 1, "model__width": 24, "model__heads": 3, "model__tied": "yes", "dataset__context": 33,
                              "dataset__test": "no"}):
            with self.subTest(**settings):
                context, split = settings.get("dataset__context", 64), "validation" if "dataset__test" in settings else "test"
                row = self.trained("gpt", **data, **settings)
                tokens, labels = gradlag.samples("text", split, "text", context=context, test=split == "test")
                self.assertEqual(tokens.shape[1], context)
                module = gradlag.load("at.safetensors")
                if split == "test":
                    self.assertGreater(row["final_accuracy"], 0.5)
                    self.check(module, row, tokens, labels)
                else:
                    self.check_validation(module, row, tokens, labels)
                os.unlink("at.safetensors")

    def check_validation(self, module, row, tokens, labels):
        import torch
        loss, = sqlite3.connect("results.db").execute("SELECT validation_loss FROM evaluation WHERE run_id = ?", (row["id"],)).fetchone()
        with torch.no_grad():
            output = module(torch.as_tensor(tokens))
        own = torch.nn.functional.cross_entropy(output.reshape(-1, output.shape[-1]), torch.as_tensor(labels).reshape(-1)).item()
        self.assertAlmostEqual(own, loss, delta=1e-4 * loss)

    def test_every_mode_writes_the_same_statistics_at_the_same_parameters(self):
        rows, files = [], []
        for number, settings in enumerate(({}, {"mode": "sync"}, {"mode": "pipeline", "workers": 2, "micro_batches": 1}, {"servers": 2},
                                           {"engine": "virtual", "pace": "constant"})):
            rows.append(self.trained("resnet8", updates=20, dataset="gaussian", dataset__samples=300, dataset__size=8,
                                     checkpoint=f"{number}-{{version}}", checkpoint_every=1, **settings))
            files.append([checkpoint.read(f"{number}-{version}")[0] for version in (10, 20)])
        self.assertEqual(len({row["parameters_sha256"] for row in rows}), 1)
        for at in (0, 1):
            names = [name for name in files[0][at] if "running_" in name]
            self.assertEqual(len(names), 18)
            for name in names:
                self.assertEqual(len({file[at][name].tobytes() for file in files}), 1, name)
        self.assertNotEqual(*(file["bn.running_mean"].tobytes() for file in files[0]))

    def test_options_and_shapes_come_from_the_checkpoint(self):
        data = {"dataset": "gaussian", "dataset__samples": 40, "dataset__classes": 3, "updates": 1, "engine": "virtual", "pace": "constant"}
        for name, settings, size in (("wide", {"model__width": 5, "dataset__size": 7}, 7),
                                     ("lenet", {"model__activation": "tanh", "dataset__size": 21, "dataset__channels": 3}, 21),
                                     ("cnn", {"dataset__size": 9, "dataset__channels": 2}, 9), ("resnet8", {"dataset__size": 5}, 5)):
            self.trained(name, checkpoint=name, **data, **settings)
            inputs = numpy.zeros((2, settings.get("dataset__channels", 1), size, size), numpy.float32)
            import torch
            self.assertEqual(gradlag.load(name)(torch.from_numpy(inputs)).shape, (2, 3))
        self.assertEqual([type(m).__name__ for m in gradlag.load("lenet").children()].count("Tanh"), 3)

    def test_missing_statistics_are_estimated_from_training_inputs(self):
        self.trained("resnet8", updates=3)
        written = gradlag.load("at.safetensors").state_dict()
        write_without("at.safetensors", "running")
        with self.assertRaises(ValueError) as caught:
            gradlag.load("at.safetensors")
        self.assertIn("bn.running_mean", str(caught.exception))
        for name, value in gradlag.load("at.safetensors", data=gradlag.samples("fashion-mnist", "train")[0]).state_dict().items():
            if "running" in name:
                self.assertLess((value - written[name]).abs().max(), 1e-3 * written[name].abs().max(), name)

    def test_another_model_is_an_error(self):
        self.trained("mlp", updates=1)
        self.assertEqual(gradlag.load(gradlag.model("mlp"), "at.safetensors").training, False)
        for other in (gradlag.model("softmax"), gradlag.model("lenet"), gradlag.model("wide"), gradlag.model("mlp", classes=9)):
            self.assertRaises(ValueError, gradlag.load, other, "at.safetensors")
        for arguments in ((gradlag.model("mlp"),), ("at.safetensors", gradlag.model("mlp"))):
            self.assertRaises(TypeError, gradlag.load, *arguments)
        write_without("at.safetensors", "fc2.bias")
        with self.assertRaises(ValueError) as caught:
            gradlag.load("at.safetensors")
        self.assertIn("fc2.bias", str(caught.exception))

    def imported(self, name):
        spec = importlib.util.spec_from_file_location(name, f"{name}.py")
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        return module

    def test_an_external_model(self):
        pathlib.Path("own.py").write_text(OWN)
        row = self.trained("external", model__command=f"{shlex.quote(sys.executable)} own.py", updates=20)
        own = self.imported("own")
        with self.assertRaises(ValueError):
            gradlag.load("at.safetensors")
        with self.assertRaises(ValueError):
            gradlag.load(own.Net(), "at.safetensors")
        self.check(gradlag.load(own.Net(), "at.safetensors", data=own.samples(300).tensors[0]), row, *own.samples(90).tensors)

    def test_frozen_layers_keep_the_values_of_the_module(self):
        import torch
        source = OWN.replace("torch.nn.Linear(8, 3))", """torch.nn.Linear(8, 3))
        self[0].requires_grad_(False)

    def train(self, mode=True):
        super().train(mode)
        self[1].eval()
        return self
""")
        pathlib.Path("frozen.py").write_text(source)
        row = self.trained("external", model__command=f"{shlex.quote(sys.executable)} frozen.py", updates=20)
        frozen = self.imported("frozen")
        torch.manual_seed(row["seed"])
        with self.assertWarns(UserWarning) as caught:
            module = gradlag.load(frozen.Net(), "at.safetensors")
        self.assertEqual(caught.filename, __file__)
        for name in ("0.weight", "1.running_mean"):
            self.assertIn(f"'{name}'", str(caught.warning))
        self.assertNotIn("1.weight", str(caught.warning))
        self.check(module, row, *frozen.samples(90).tensors)

    def test_an_external_model_with_five_dimensions(self):
        source = OWN.replace("torch.nn.Linear(4, 8), torch.nn.BatchNorm1d(8)", "torch.nn.Unflatten(1, (1, 1, 2, 2)), torch.nn.Conv3d(1, 2, (1, 1, 2)), torch.nn.Flatten()")
        pathlib.Path("deep.py").write_text(source.replace("torch.nn.Linear(8, 3)", "torch.nn.Linear(4, 3)"))
        row = self.trained("external", model__command=f"{shlex.quote(sys.executable)} deep.py", updates=20)
        deep = self.imported("deep")
        self.check(gradlag.load(deep.Net(), "at.safetensors"), row, *deep.samples(90).tensors)

    def test_cifar10(self):
        rng = numpy.random.default_rng(1)
        for file in [f"data_batch_{i}.bin" for i in range(1, 6)]:
            with open(file, "wb") as batch:
                batch.truncate(10000 * 3073)  # black images of class 0, which take no space on disk
        rows = rng.integers(0, 256, (10000, 3073), numpy.uint8)
        rows[:, 0] %= 10
        rows.tofile("test_batch.bin")
        kept = os.environ.get("XDG_CACHE_HOME")
        os.environ["XDG_CACHE_HOME"] = os.getcwd()
        try:
            row = self.trained("softmax", dataset="cifar10", dataset__path=".", updates=1)
        finally:
            os.environ.pop("XDG_CACHE_HOME") if kept is None else os.environ.update(XDG_CACHE_HOME=kept)
        self.check(gradlag.load("at.safetensors"), row, *gradlag.samples("cifar10", path="."))
        self.assertEqual([len(gradlag.samples("cifar10", split, ".")[1]) for split in ("train", "validation")], [45000, 5000])
