"""Datasets of files as gradlag's models see them, for NumPy: fashion-mnist, cifar10, text. Generated datasets exist in gradlag only."""
import gzip
import os
import pathlib

import numpy

SPLITS = ("train", "validation", "test")
VALIDATION = 5000  # samples, the last ones of the training files
# Shape of an image; mean and standard deviation of each channel, for pixels in [0, 1].
_FILES = {"fashion-mnist": ((1, 28, 28), [0.286], [0.353]),
          "cifar10": ((3, 32, 32), [0.4914, 0.4822, 0.4465], [0.2470, 0.2435, 0.2616])}
_GRAMMAR_VOCABULARY = 128


def shape(settings):
    """The shape of an input and the number of classes, for a run with these settings. The shape is (channels, height, width) of an
    image, or (1, positions, 1) of a window of tokens."""
    if settings["dataset"] in _FILES:
        return _FILES[settings["dataset"]][0], 10
    if settings["dataset"] in ("text", "grammar"):
        return (1, settings["dataset.context"], 1), settings.get("dataset.vocabulary", _GRAMMAR_VOCABULARY)
    size = settings["dataset.size"]
    return (settings.get("dataset.channels", 1), size, size), settings.get("dataset.classes", 1)


def normalise(dataset, images):
    """What a model reads: float32 images from bytes, [samples, channels, height, width]."""
    _, mean, deviation = _FILES[dataset]
    scale = (1 / (255 * numpy.array(deviation))).astype(numpy.float32)
    shift = (-numpy.array(mean) / numpy.array(deviation)).astype(numpy.float32)
    return images * scale[:, None, None] + shift[:, None, None]


def _idx(folder, name, header):
    path = folder / (name + ".gz")
    with (gzip.open(path) if path.exists() else open(folder / name, "rb")) as file:
        return numpy.frombuffer(file.read(), numpy.uint8, offset=header)


def _fashion_mnist(folder, file):
    labels = _idx(folder, f"{file}-labels-idx1-ubyte", 8)
    return _idx(folder, f"{file}-images-idx3-ubyte", 16).reshape(len(labels), 1, 28, 28), labels


def _cifar10(folder, file):
    names = ["test_batch.bin"] if file == "t10k" else [f"data_batch_{i}.bin" for i in range(1, 6)]
    rows = numpy.concatenate([numpy.fromfile(folder / name, numpy.uint8).reshape(-1, 3073) for name in names])
    return rows[:, 1:].reshape(-1, 3, 32, 32), rows[:, 0]


def _text(path, split, context, test):
    """Windows without overlap, in order: tokens and next tokens, int64 [windows, context]."""
    files = sorted((file for file in path.iterdir() if file.is_file() and not file.name.startswith(".")),
                   key=lambda file: os.fsencode(file.name)) if path.is_dir() else [path]
    text = numpy.frombuffer(b"".join(file.read_bytes() for file in files), numpy.uint8).astype(numpy.int64)
    validation = len(text) * 95 // 100
    end = len(text) * 90 // 100 if test else validation
    part = {"train": text[:end], "test": text[end:validation], "validation": text[validation:]}[split]
    windows = max(0, len(part) - 1) // context
    return tuple(part[first:first + windows * context].reshape(windows, context) for first in (0, 1))


def samples(dataset, split="test", path=None, context=64, test=True):
    """Inputs and labels (int64) of a split, in gradlag's order. Inputs of images are float32, [samples, channels, height, width].

    dataset   "fashion-mnist", "text", or "cifar10" with path=, the folder of its binary batches (data_batch_1.bin …)
    split     "train", "validation" or "test"
    context, test   of text: the keys dataset.context and dataset.test. Inputs and labels are int64, [windows, context]: the windows that
                    an evaluation reads
    """
    names = (*_FILES, "text")
    if dataset not in names or split not in SPLITS:
        raise ValueError(f"there are no samples of dataset={dataset}, split {split}: choose one of {', '.join(names)} and one of "
                         f"{', '.join(SPLITS)}; gradlag generates other datasets itself")
    if path is None and dataset == "cifar10":
        raise ValueError("cifar10 needs path=, the folder of its binary batches")
    installed = pathlib.Path(os.environ.get("GRADLAG_DATASETS") or "/usr/share/datasets") / dataset
    if dataset == "text":
        return _text(installed if path is None else pathlib.Path(path), split, context, test)
    read = _fashion_mnist if dataset == "fashion-mnist" else _cifar10
    images, labels = read(installed if path is None else pathlib.Path(path), "t10k" if split == "test" else "train")
    part = {"train": slice(None, -VALIDATION), "validation": slice(-VALIDATION, None), "test": slice(None)}[split]
    return normalise(dataset, images[part]), labels[part].astype(numpy.int64)
