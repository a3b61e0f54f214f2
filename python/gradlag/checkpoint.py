"""Reads checkpoints (checkpoint=FILE.safetensors): as NumPy arrays, or into a PyTorch module."""
import json
import math
import os
import re
import struct
import warnings

import numpy

_TYPES = {"F64": "<f8", "F32": "<f4", "F16": "<f2", "BF16": "<u2", "I64": "<i8", "I32": "<i4", "I16": "<i2", "I8": "i1",
          "U64": "<u8", "U32": "<u4", "U16": "<u2", "U8": "u1", "BOOL": "?"}
# Tensors that are state of the training: of the optimizer, of a correction, of waiting gradients, of ranks.
_TRAINING = re.compile(r"optimizer\d+\.|(correction\d+|waiting\d+|ranks)$")
SHOWN = 5  # names in a warning, at most
_STATISTIC = re.compile(r"(^|\.)running_(mean|var)$")


def _tensor(path, name, entry, data):
    try:
        begin, end = entry["data_offsets"]
        if begin < 0 or end > len(data):
            raise ValueError(f"the file lacks some of the bytes {begin} to {end}")
        tensor = numpy.frombuffer(data[begin:end], _TYPES[entry["dtype"]]).reshape(entry["shape"])
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(f"{path}: tensor '{name}' is damaged or of an unknown type: {error!r}; write a new checkpoint") from None
    if entry["dtype"] == "BF16":  # the upper half of a float32
        tensor = (tensor.astype(numpy.uint32) << 16).view(numpy.float32)
    return tensor


def read(path):
    """A .safetensors file: dict of name -> array, and its metadata (dict of texts). ValueError: the file is damaged."""
    with open(path, "rb") as file:
        content = file.read()
    try:
        length, = struct.unpack_from("<Q", content)
        if length > len(content) - 8:
            raise ValueError(f"the file is shorter than its header of {length} bytes")
        header = json.loads(content[8:8 + length])
        metadata = header.pop("__metadata__", {})
    except (struct.error, AttributeError, TypeError, ValueError) as error:
        raise ValueError(f"{path} is not a .safetensors file, or is damaged: {error}; write a new checkpoint") from None
    data = memoryview(content)[8 + length:]
    return {name: _tensor(path, name, entry, data) for name, entry in header.items()}, metadata


def settings(path):
    """The settings of the run that wrote the checkpoint: settings("at.safetensors")["dataset"]."""
    metadata = read(path)[1]
    if "config" not in metadata:
        raise ValueError(f"{path} does not name its run's settings: gradlag did not write it")
    return json.loads(metadata["config"])


def stored(shape):
    """The one to four sizes of a tensor of this shape in gradlag: the sizes from the fourth on are multiplied."""
    shape = tuple(shape) or (1,)
    return shape if len(shape) <= 4 else (*shape[:3], math.prod(shape[3:]))


def _fill(module, path, tensors):
    """Copies the tensors of the file into the module. Returns the names that it lacks: statistics to estimate, frozen tensors."""
    import torch
    from . import batch_norm

    own = module.state_dict()
    parameters = dict(module.named_parameters())
    trained = {name for name, parameter in parameters.items() if parameter.requires_grad}
    missing, unknown = sorted(trained - tensors.keys()), sorted(tensors.keys() - own.keys())
    if missing or unknown:
        raise ValueError(f"{path} is of another model: the module has no tensor '{unknown[0]}'" if unknown else
                         f"{path} is of another model: it has no tensor '{missing[0]}'")
    for name, tensor in tensors.items():
        if tensor.shape != stored(own[name].shape):
            raise ValueError(f"{path} is of another model, or of other data: tensor '{name}' has shape {tensor.shape}, "
                             f"in the module {tuple(own[name].shape)}")
        own[name] = torch.from_numpy(tensor.copy()).reshape(own[name].shape)
    module.load_state_dict(own)
    layers = batch_norm.estimated(module)
    statistics = [name for name in own if _STATISTIC.search(name) and name not in tensors]
    missing = [name for name in statistics if module.get_submodule(name.rpartition(".")[0]) in layers]
    return missing, [name for name in (*parameters, *statistics) if name not in tensors and name not in missing]


def load(model, path=None, data=None):
    """Loads a checkpoint into a PyTorch module and returns the module, ready to predict (`eval`).

    load("at.safetensors")           the built-in model that the run trained (gradlag.model)
    load(module, "at.safetensors")   your own module: of model=external, or with the names of the built-in one
    data    training inputs, [samples, …]: re-estimates batch norm's statistics where the checkpoint has none
            (external models, and runs that were asked to stop)

    Parameters with requires_grad=False, and statistics of layers that module.train() leaves in eval mode, are not in a file of an external
    model: they keep the values of the module, and a warning names them.
    """
    from . import batch_norm, models

    module, path = (None, model) if path is None else (model, path)
    if not isinstance(path, (str, os.PathLike)) or isinstance(module, (str, os.PathLike)):
        raise TypeError("gradlag.load needs a path, or a module and then a path")
    tensors = {name: tensor for name, tensor in read(path)[0].items() if not _TRAINING.match(name)}
    module = models.of(settings(path)) if module is None else module
    missing, frozen = _fill(module, path, tensors)
    if missing and data is None:
        raise ValueError(f"{path} has no statistics of batch norm ('{missing[0]}'): give training inputs, load(…, data=inputs); "
                         "gradlag.samples reads those of fashion-mnist and cifar10")
    if frozen:
        warnings.warn(f"{path} has no values of frozen tensors, which keep those of the module: {', '.join(map(repr, frozen[:SHOWN]))}"
                      f"{', …' if len(frozen) > SHOWN else ''}; give them the values that they had in the run", stacklevel=3)
    if missing:
        batch_norm.estimate_from(module, data)
    return module.eval()
