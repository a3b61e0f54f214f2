"""The program's side of model=external: answers gradlag's requests (docs/external-models.md).

NumPy is all it needs. A model is any object with

    samples    dict: number of samples of "train", "validation" and "test"
    classes    number of classes; 0 if accuracy has no meaning
    parameters()                       -> dict: name -> initial values (float32 array)
    gradient(parameters, samples, rng) -> loss, correct, dict: name -> gradient
    evaluate(parameters, split, samples) -> loss, correct, predictions (None, or one class a sample)

A loss is the mean over the batch, in nats. `parameters` are read-only views into memory shared with gradlag.
`rng` is a numpy.random.Generator of (seed, worker, batch). No other state may influence a gradient.
An optional method prepare(parameters) is called before evaluations at these parameters.
"""
import hashlib
import json
import math
import mmap
import os
import socket
import sys
import traceback

import numpy

PROTOCOL = 1


class Request:
    """What gradlag's request `open` says."""

    def __init__(self, message):
        self.seed = message["seed"]
        self.workers = message["workers"]
        self.batch = message["batch"]
        self.options = message["options"]

    def option(self, name, default):
        """The key model.NAME as the type of `default`."""
        text = self.options.get(name)
        if text is None:
            return default
        if isinstance(default, bool):
            return text in ("true", "yes", "1")
        return type(default)(text)


class _Vector:
    """A flat float32 vector of the shared memory, and its named slices."""

    def __init__(self, memory, offset, shapes):
        self.slices = {}
        count = sum(math.prod(shape) for shape in shapes.values())
        self.flat = numpy.frombuffer(memory, numpy.float32, count, offset)
        at = 0
        for name, shape in shapes.items():
            size = math.prod(shape)
            self.slices[name] = self.flat[at:at + size].reshape(shape)
            at += size

    def write(self, values):
        for name, at in self.slices.items():
            value = numpy.asarray(values[name])
            if value.shape != at.shape:
                raise ValueError(f"'{name}' has shape {value.shape}; its parameter has {at.shape}")
            at[...] = value


class _Peer:
    def __init__(self, make):
        self.make = make
        self.socket = socket.socket(fileno=int(os.environ.pop("GRADLAG_SOCKET_FD")))
        self.memory_fd = int(os.environ.pop("GRADLAG_MEMORY_FD"))
        self.pure = False

    def open(self, message):
        if message["protocol"] != PROTOCOL:
            raise ValueError(f"gradlag speaks protocol {message['protocol']}, this package {PROTOCOL}: install the package of that gradlag")
        self.request = Request(message)
        self.model = self.make(self.request)
        initial = self.model.parameters()
        self.shapes = {name: value.shape if value.shape else (1,) for name, value in initial.items()}
        return {"parameters": [{"name": n, "shape": list(s)} for n, s in self.shapes.items()],
                "samples": dict(self.model.samples), "classes": int(self.model.classes), **describe(self.model)}

    def map(self, message):
        memory = mmap.mmap(self.memory_fd, message["bytes"])
        self.parameters = _Vector(memory, message["parameters"], self.shapes)
        self.gradients = _Vector(memory, message["gradient"], self.shapes)
        for each in self.parameters.slices.values():
            each.setflags(write=False)
        return {}

    def initial(self, message):
        for each in self.parameters.slices.values():
            each.setflags(write=True)
        initial = self.model.parameters()
        self.parameters.write({n: numpy.reshape(v, self.shapes[n]) for n, v in initial.items()})
        for each in self.parameters.slices.values():
            each.setflags(write=False)
        return {}

    def _gradient(self, message):
        rng = numpy.random.default_rng([self.request.seed, message["worker"], message["batch"]])
        return self.model.gradient(self.parameters.slices, numpy.array(message["samples"]), rng)

    def gradient(self, message):
        loss, correct, gradients = self._gradient(message)
        self.gradients.write(gradients)
        if not self.pure:
            self._check_purity(message, loss)
        return {"loss": finite(loss), "correct": int(correct)}

    def _check_purity(self, message, loss):
        """The first gradient is computed twice: replay needs a pure function."""
        first = self.gradients.flat.copy()
        again, _, gradients = self._gradient(message)
        self.gradients.write(gradients)
        if finite(again) != finite(loss) or first.tobytes() != self.gradients.flat.tobytes():
            raise ValueError("the same batch at the same parameters gave two different gradients. A gradient may depend on parameters, samples and "
                             "the given random generator only (no running statistics, no other random numbers, deterministic kernels)")
        self.pure = True

    def prepare(self, message):
        if hasattr(self.model, "prepare"):
            self.model.prepare(self.parameters.slices)
        return {}

    def evaluate(self, message):
        samples = numpy.arange(message["first"], message["first"] + message["count"])
        loss, correct, predictions = self.model.evaluate(self.parameters.slices, message["split"], samples)
        answer = {"loss": finite(loss), "correct": int(correct)}
        if predictions is not None and self.model.classes > 0:
            answer["predicted"] = numpy.bincount(predictions, minlength=self.model.classes).tolist()
        return answer

    def serve(self):
        handlers = {name: getattr(self, name) for name in ("open", "map", "initial", "gradient", "prepare", "evaluate")}
        with self.socket.makefile("r") as lines:
            for line in lines:
                message = json.loads(line)
                try:
                    answer = handlers[message["type"]](message)
                except Exception as error:  # the whole traceback goes to stderr, its last line to gradlag
                    traceback.print_exc()
                    answer = {"error": f"{type(error).__name__}: {error}"}
                self.socket.sendall((json.dumps(answer) + "\n").encode())


def finite(value):
    """JSON has no NaN: null means not finite."""
    value = float(value)
    return value if math.isfinite(value) else None


def describe(model):
    """What computes here: for the run's row."""
    path = os.path.abspath(sys.argv[0])
    with open(path, "rb") as file:
        digest = hashlib.sha256(file.read()).hexdigest()
    versions = {"python": ".".join(map(str, sys.version_info[:3])), "numpy": numpy.__version__}
    if "torch" in sys.modules:
        versions["torch"] = sys.modules["torch"].__version__
    return {"description": ", ".join([os.path.basename(path), *(f"{k} {v}" for k, v in versions.items())]),
            "program": {"sha256": digest, "versions": versions}}


def serve(make):
    """Answers gradlag's requests until the run is over. make(request) returns the model."""
    if "GRADLAG_SOCKET_FD" not in os.environ:
        sys.exit(f"{sys.argv[0]}: gradlag starts this program: gradlag run model=external model.command='python3 {sys.argv[0]}'")
    _Peer(make).serve()
