"""The program's side of model=external: answers gradlag's requests (docs/external-models.md).

NumPy is all it needs. A model is any object with

    samples      dict: the number of samples of "train", "validation" and "test"
    classes      the number of classes; 0 if accuracy has no meaning: then `correct` may be None
    parameters()                         -> dict: name -> initial values (float32 array)
    gradient(parameters, samples, rng)   -> loss, correct, dict: name -> gradient; `rng` may be left out
    evaluate(parameters, split, samples) -> loss, correct, predictions (one class a sample, or None)

A loss is the mean over the samples, in nats. `correct` is the number of right predictions.
`parameters` are views of gradlag's own memory, and may be read-only.
`rng` is a numpy.random.Generator of (seed, worker, batch); nothing else may be random in a gradient.

Optional: not_hidden, the names of matrices that are embeddings or the output layer; optimizer=muon updates all other matrices as a whole.
Optional methods: prepare(parameters) is called before evaluations at these parameters. bind(parameters, gradients) is
called before the first use of these views, and whenever they change, which is in most steps; a model that has it writes
gradients into those views itself and returns None in their place. If the model has a true attribute `copy`, the views are
always the same, and gradlag copies parameters and gradient.
"""
import functools
import hashlib
import inspect
import json
import math
import mmap
import operator
import os
import socket
import sys
import time
import traceback

import numpy

from .checkpoint import stored

PROTOCOL = 2
SPLITS = "train", "validation", "test"


def _truth(text):
    if text not in ("true", "yes", "1", "false", "no", "0"):
        raise ValueError("use true or false")
    return text in ("true", "yes", "1")


class Request:
    """The request of gradlag that opens the model: seed, workers, batch, threads and the keys model.NAME."""

    def __init__(self, message):
        self.seed = message["seed"]
        self.workers = message["workers"]
        self.batch = message["batch"]
        self.threads = message["threads"]
        self._options = message["options"]
        self._read = set()

    def option(self, name, default):
        """The value of key model.NAME, converted to the type of `default`, for example bool, int, float or str."""
        if default is None or isinstance(default, (list, tuple, set, dict)):
            raise TypeError(f"option('{name}'): a text cannot become a {type(default).__name__}; give a text as default and convert it")
        self._read.add(name)
        text = self._options.get(name)
        if text is None:
            return default
        try:
            return _truth(text) if isinstance(default, bool) else type(default)(text)
        except ValueError as error:
            raise ValueError(f"model.{name}={text} is not of type {type(default).__name__}: {error}") from None

    def check_all_read(self):
        unknown = sorted(set(self._options) - self._read)
        if unknown:
            known = ", ".join("model." + name for name in sorted(self._read)) or "none"
            raise ValueError(f"this program has no key model.{unknown[0]}; it has: {known}")


def shapes(values):
    """The shapes of what parameters() returned."""
    if not hasattr(values, "items"):
        raise TypeError(f"parameters() must return a dict of name -> initial values, not {type(values).__name__}")
    found = {name: numpy.shape(value) or (1,) for name, value in values.items()}
    empty = [f"'{name}' without values" for name, shape in found.items() if math.prod(shape) == 0]
    if empty or not found:
        raise ValueError(f"parameters() returned {empty[0] if empty else 'no parameter'}: return a dict of name -> initial values, each with one or more values")
    return found


def _counts(samples):
    """The attribute `samples` with numbers of Python, for JSON."""
    try:
        counts = {split: operator.index(count) for split, count in samples.items()}
    except (AttributeError, TypeError):
        raise TypeError(f"samples must be a dict of split -> number of samples, such as {{'train': 60000}}, not {samples!r}") from None
    unknown = [split for split in counts if split not in SPLITS]
    if unknown:
        raise ValueError(f"samples has the split {unknown[0]!r}; the splits are {', '.join(SPLITS)}")
    return counts


def _classes(classes):
    try:
        return operator.index(classes)
    except TypeError:
        raise TypeError(f"classes must be a whole number, 0 if accuracy has no meaning, not {classes!r}") from None


class _Vector:
    """A flat float32 vector in the shared memory, and its named slices."""

    def __init__(self, memory, offset, shapes):
        count = sum(math.prod(shape) for shape in shapes.values())
        self.flat = numpy.frombuffer(memory, numpy.float32, count, offset)
        self.slices = {}
        at = 0
        for name, shape in shapes.items():
            size = math.prod(shape)
            self.slices[name] = self.flat[at:at + size].reshape(shape)
            at += size

    def write(self, values):
        for name, at in self.slices.items():
            at[...] = values[name]


def _of_user(frames):
    """The frames that are not of this package."""
    own = os.path.dirname(os.path.abspath(__file__))
    return [frame for frame in frames if os.path.dirname(os.path.abspath(frame.filename)) != own]


def _refuse(model, method, returned):
    """Raises TypeError: the user's method returned a wrong value. The message names the method and the place of its definition."""
    code = getattr(inspect.unwrap(getattr(model, method)), "__code__", None)
    place = f" ({os.path.basename(code.co_filename)}, line {code.co_firstlineno})" if code else ""
    raise TypeError(f"{method}() returned {returned}{place}") from None


def _kind(value):
    return "None" if value is None else f"one {type(value).__name__}"


def _answer(model, method, returned, third):
    """The answer with the loss and `correct` that method "gradient" or "evaluate" returned, and the third value that it returned."""
    if not isinstance(returned, (tuple, list)):
        _refuse(model, method, f"{_kind(returned)}; it returns loss, correct, {third}")
    if len(returned) != 3:
        _refuse(model, method, f"{len(returned)} values; it returns loss, correct, {third}")
    loss, correct, last = returned
    try:
        answer = {"loss": finite(loss)}
    except (TypeError, ValueError):
        _refuse(model, method, f"{_kind(loss)} as loss; it is one number, the mean over the samples")
    if correct is None and model.classes == 0:
        return answer, last
    try:
        answer["correct"] = int(correct)
    except (TypeError, ValueError):
        _refuse(model, method, f"{_kind(correct)} as correct; it is the number of right predictions, or None if classes is 0")
    if answer["correct"] != correct:
        _refuse(model, method, f"{correct} as correct; it is the number of right predictions, not their share")
    return answer, last


def _checked(model, gradients, shapes):
    """The gradients that gradient() returned. Raises TypeError for a mistake in them."""
    if not hasattr(gradients, "keys"):
        _refuse(model, "gradient", f"{_kind(gradients)} as gradients; they are a dict of name -> gradient")
    for name, shape in shapes.items():
        if name not in gradients:
            _refuse(model, "gradient", f"no gradient of parameter '{name}'")
        if (numpy.shape(gradients[name]) or (1,)) != shape:  # as shapes() counts a number
            _refuse(model, "gradient", f"'{name}' with shape {numpy.shape(gradients[name])}; its parameter has {shape}")
    unknown = [name for name in gradients.keys() if name not in shapes]
    if unknown:
        _refuse(model, "gradient", f"a gradient of '{unknown[0]}', which is no parameter; the parameters are {', '.join(shapes)}")
    return gradients


def _made(make, request):
    """The user's model. Raises TypeError for a mistake in it, with the line that calls serve()."""
    call = _of_user(traceback.extract_stack())[-1]
    place = f" ({os.path.basename(call.filename)}, line {call.lineno})"
    if not callable(make):
        raise TypeError(f"serve takes the class, not an object of it: gradlag.serve({type(make).__name__}){place}")
    if not takes(make, 1):
        name = getattr(make, "__name__", type(make).__name__)
        raise TypeError(f"serve calls {name}(request), but {name} takes no request: define __init__(self, request){place}")
    model = make(request)
    missing = [name for name in ("samples", "classes", "parameters", "gradient", "evaluate") if not hasattr(model, name)]
    if missing:
        raise TypeError(f"the model, of type {type(model).__name__}, has no {missing[0]}; it needs samples, classes, parameters(), gradient() and evaluate(){place}")
    return model


class _Peer:
    def __init__(self, make):
        self.make = make
        self.socket = socket.socket(fileno=int(os.environ.pop("GRADLAG_SOCKET_FD")))
        self.regions = []
        self.bound = None
        self.is_pure = False

    def open(self, message):
        if message["protocol"] != PROTOCOL:
            raise ValueError(f"gradlag speaks protocol {message['protocol']}, this package {PROTOCOL}: install the package that belongs to this gradlag")
        self.request = Request(message)
        self.model = _made(self.make, self.request)
        self.request.check_all_read()
        self.takes_rng = takes(self.model.gradient, 3)
        self.shapes = shapes(self.model.parameters())
        not_hidden = set(getattr(self.model, "not_hidden", ()))
        if not_hidden - self.shapes.keys():
            raise ValueError(f"not_hidden names '{min(not_hidden - self.shapes.keys())}', which is no parameter of the model; it has: {', '.join(self.shapes)}")
        count = sum(map(math.prod, self.shapes.values()))
        self.gradients = _Vector(mmap.mmap(-1, count * 4), 0, self.shapes)  # until a request names a place in shared memory
        self.vector = functools.lru_cache(64)(lambda region, offset: _Vector(self.regions[region], offset, self.shapes))
        return {"parameters": [{"name": name, "shape": stored(shape), "hidden": name not in not_hidden} for name, shape in self.shapes.items()],
                "samples": _counts(self.model.samples), "classes": _classes(self.model.classes),
                "copy": bool(getattr(self.model, "copy", False)), **describe()}

    def map(self, message):
        writable = message["writable"]
        fd = os.open(message["path"], os.O_RDWR if writable else os.O_RDONLY)
        access = mmap.ACCESS_WRITE if writable else mmap.ACCESS_READ
        self.regions.append(mmap.mmap(fd, message["bytes"], access=access, offset=message["offset"]))
        os.close(fd)
        return {}

    def _place(self, message):
        """Sets self.parameters, and self.gradients if the request names them, to the request's places."""
        self.parameters = self.vector(*message["parameters"])
        self.gradients = self.vector(*message["gradient"]) if "gradient" in message else self.gradients
        if hasattr(self.model, "bind") and self.bound != (self.parameters, self.gradients):
            self.bound = self.parameters, self.gradients
            self.model.bind(self.parameters.slices, self.gradients.slices)

    def initial(self, message):
        self.vector(*message["parameters"]).write({name: numpy.reshape(value, self.shapes[name]) for name, value in self.model.parameters().items()})
        return {}

    def _gradient(self, message):
        rng = [numpy.random.default_rng([self.request.seed, message["worker"], message["batch"]])] if self.takes_rng else []
        samples = numpy.array(message["samples"])
        began = time.perf_counter()
        returned = self.model.gradient(self.parameters.slices, samples, *rng)
        self.seconds = time.perf_counter() - began
        answer, gradients = _answer(self.model, "gradient", returned, "gradients")
        if gradients is not None or not hasattr(self.model, "bind"):
            self.gradients.write(_checked(self.model, gradients, self.shapes))
        return answer

    def gradient(self, message):
        self._place(message)
        answer = self._gradient(message)
        if not self.is_pure:
            self._check_purity(message, answer)
        return {**answer, "seconds": self.seconds}

    def _check_purity(self, message, answer):
        """Computes the first gradient twice: replay needs a pure function."""
        first = self.gradients.flat.tobytes()
        if self._gradient(message) != answer or first != self.gradients.flat.tobytes():
            raise ValueError("the same batch at the same parameters gave two gradients. A gradient may depend on nothing but the parameters, the "
                             "samples and the given random generator: no running statistics, no other random numbers, deterministic kernels")
        self.is_pure = True

    def prepare(self, message):
        self._place(message)
        if hasattr(self.model, "prepare"):
            self.model.prepare(self.parameters.slices)
        return {}

    def evaluate(self, message):
        samples = numpy.arange(message["first"], message["first"] + message["count"])
        returned = self.model.evaluate(self.parameters.slices, message["split"], samples)
        answer, predictions = _answer(self.model, "evaluate", returned, "predictions")
        if predictions is not None and self.model.classes > 0:
            try:
                answer["predicted"] = numpy.bincount(numpy.asarray(predictions), minlength=self.model.classes).tolist()
            except (TypeError, ValueError) as error:
                _refuse(self.model, "evaluate", f"predictions that are not one class a sample: {error}")
        return answer

    def answer(self, message):
        try:
            return json.dumps(getattr(self, message["type"])(message))
        except Exception as error:
            return json.dumps({"error": explain(error)})

    def serve(self):
        with self.socket.makefile("r", encoding="utf-8") as lines:
            for line in lines:
                self.socket.sendall((self.answer(json.loads(line)) + "\n").encode())


def explain(error):
    """An exception, with its place in the user's program in the first line. Its traceback, without this package, goes to stderr."""
    report = traceback.TracebackException.from_exception(error)
    frames = _of_user(report.stack)
    if frames:
        report.stack = traceback.StackSummary.from_list(frames)
        print("".join(report.format()), end="", file=sys.stderr)
    home = os.path.dirname(os.path.abspath(sys.argv[0]))
    places = [frame for frame in frames if os.path.dirname(os.path.abspath(frame.filename)) == home] or frames
    first, *rest = str(error).split("\n")
    place = f" ({os.path.basename(places[-1].filename)}, line {places[-1].lineno})" if places else ""
    return "\n".join([f"{type(error).__name__}: {first}{place}", *rest])


def takes(function, count):
    """Whether `function` can be called with `count` positional arguments."""
    try:
        inspect.signature(function).bind(*range(count))
    except TypeError:
        return False
    except ValueError:  # no signature is known
        pass
    return True


def finite(value):
    """JSON has no NaN: null means "not finite"."""
    value = float(value)
    return value if math.isfinite(value) else None


def describe():
    """Identifies the program in the run's row; replay refuses another program."""
    path = os.path.abspath(sys.argv[0])
    digest = None  # there is no file, as with python3 -c
    if os.path.isfile(path):
        with open(path, "rb") as file:
            digest = hashlib.sha256(file.read()).hexdigest()
    versions = {"python": ".".join(map(str, sys.version_info[:3])), "numpy": numpy.__version__}
    if "torch" in sys.modules:
        versions["torch"] = str(sys.modules["torch"].__version__)
    return {"description": ", ".join([os.path.basename(path), *(f"{name} {version}" for name, version in versions.items())]),
            "program": {"sha256": digest, "versions": versions}}


def serve(make):
    """Answers gradlag's requests until the run is over. make(request) returns the model."""
    if "GRADLAG_SOCKET_FD" not in os.environ:
        sys.exit(f"{sys.argv[0]} is started by gradlag: gradlag run model=external model.command='python3 {sys.argv[0]}'")
    _Peer(make).serve()
