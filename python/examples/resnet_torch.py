"""A small residual network on CIFAR-10 (model.data=FOLDER with the binary batches), or on generated images.

    gradlag run model=external model.command="python3 python/examples/resnet_torch.py" mode=async workers=4
"""
import pathlib

import numpy
import torch
from torch import nn

import gradlag.torch


class Block(nn.Module):
    def __init__(self, width, out, stride):
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(width, out, 3, stride, 1, bias=False), nn.BatchNorm2d(out), nn.ReLU(),
                                  nn.Conv2d(out, out, 3, 1, 1, bias=False), nn.BatchNorm2d(out))
        self.skip = nn.Identity() if stride == 1 and width == out else nn.Conv2d(width, out, 1, stride, bias=False)

    def forward(self, x):
        return torch.relu(self.body(x) + self.skip(x))


def network(request):
    width = request.option("width", 8)
    return nn.Sequential(nn.Conv2d(3, width, 3, 1, 1, bias=False), nn.BatchNorm2d(width), nn.ReLU(),
                         Block(width, width, 1), Block(width, 2 * width, 2), Block(2 * width, 4 * width, 2),
                         nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4 * width, 10))


def cifar10(folder):
    def read(names):
        rows = numpy.concatenate([numpy.fromfile(folder / name, numpy.uint8).reshape(-1, 3073) for name in names])
        images = torch.from_numpy(rows[:, 1:].reshape(-1, 3, 32, 32).astype(numpy.float32) / 127.5 - 1)
        return torch.utils.data.TensorDataset(images, torch.from_numpy(rows[:, 0].astype(numpy.int64)))
    return {"train": read([f"data_batch_{i}.bin" for i in range(1, 6)]), "test": read(["test_batch.bin"])}


def waves(count, seed):
    """Images of ten classes: a plane wave of the class's direction and frequency, in noise."""
    rng = numpy.random.default_rng(seed)
    labels = rng.integers(0, 10, count)
    y, x = numpy.mgrid[0:16, 0:16] / 16
    angle, frequency = labels * numpy.pi / 10, 2 + labels % 3
    phase = rng.uniform(0, 2 * numpy.pi, (count, 1, 1))
    wave = numpy.sin(2 * numpy.pi * frequency[:, None, None] * (x * numpy.cos(angle)[:, None, None] + y * numpy.sin(angle)[:, None, None]) + phase)
    images = wave[:, None] * 0.7 + rng.normal(size=(count, 3, 16, 16))
    return torch.utils.data.TensorDataset(torch.from_numpy(images.astype(numpy.float32)), torch.from_numpy(labels))


def data(request):
    folder = request.option("data", "")
    if folder:
        return cifar10(pathlib.Path(folder))
    return {"train": waves(request.option("samples", 4000), 1), "validation": waves(500, 2), "test": waves(1000, 3)}


gradlag.torch.serve(network, data)
