"""Datasets of files as gradlag's models see them, for NumPy: fashion-mnist and cifar10. Generated datasets exist in gradlag only."""
import gzip
import os
import pathlib

import numpy

SPLITS = ("train", "validation", "test")
VALIDATION = 5000  # the last of the training files
# Image, mean and deviation of each channel, of pixels in [0, 1].
_FILES = {"fashion-mnist": ((1, 28, 28), [0.286], [0.353]),
          "cifar10": ((3, 32, 32), [0.4914, 0.4822, 0.4465], [0.2470, 0.2435, 0.2616])}


def shape(settings):
    """(channels, height, width) of an image and the number of classes, of a run with these settings."""
    if settings["dataset"] in _FILES:
        return _FILES[settings["dataset"]][0], 10
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


def samples(dataset, split="test", path=None):
    """Inputs (float32, [samples, channels, height, width]) and labels (int64) of a split, in gradlag's order.

    dataset   "fashion-mnist", or "cifar10" with path=, the folder of its binary batches (data_batch_1.bin …)
    split     "train", "validation" or "test"
    """
    if dataset not in _FILES or split not in SPLITS:
        raise ValueError(f"there are no samples of dataset={dataset}, split {split}: choose one of {', '.join(_FILES)} and one of "
                         f"{', '.join(SPLITS)}; gradlag generates other datasets itself")
    if path is None and dataset == "cifar10":
        raise ValueError("cifar10 needs path=, the folder of its binary batches")
    installed = pathlib.Path(os.environ.get("GRADLAG_DATASETS") or "/usr/share/datasets") / dataset
    read = _fashion_mnist if dataset == "fashion-mnist" else _cifar10
    images, labels = read(installed if path is None else pathlib.Path(path), "t10k" if split == "test" else "train")
    part = {"train": slice(None, -VALIDATION), "validation": slice(-VALIDATION, None), "test": slice(None)}[split]
    return normalise(dataset, images[part]), labels[part].astype(numpy.int64)
