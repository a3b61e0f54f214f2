"""The built-in models in PyTorch, with the tensors' names of a checkpoint. Their source is worker/model/model_NAME.c."""
from collections import OrderedDict

import torch
from torch import nn

from . import datasets


def _sequence(**layers):
    return nn.Sequential(OrderedDict(layers))


def linear(inputs, classes):
    return _sequence(flatten=nn.Flatten(), fc=nn.Linear(inputs[0] * inputs[1] * inputs[2], classes, bias=False))


def softmax(inputs, classes):
    return _sequence(flatten=nn.Flatten(), fc=nn.Linear(inputs[0] * inputs[1] * inputs[2], classes))


def _layers(inputs, classes, first, second):
    return _sequence(flatten=nn.Flatten(), fc1=nn.Linear(inputs[0] * inputs[1] * inputs[2], first), relu1=nn.ReLU(),
                     fc2=nn.Linear(first, second), relu2=nn.ReLU(), fc3=nn.Linear(second, classes))


def mlp(inputs, classes):
    return _layers(inputs, classes, 256, 128)


def wide(inputs, classes, width=1024):
    return _layers(inputs, classes, width, width)


def lenet(inputs, classes, activation="relu"):
    act = nn.Tanh if activation == "tanh" else nn.ReLU
    channels, height, width = inputs
    left = 16 * (((height - 4) // 2 - 4) // 2) * (((width - 4) // 2 - 4) // 2)
    return _sequence(conv1=nn.Conv2d(channels, 8, 5), pool1=nn.MaxPool2d(2), act1=act(), conv2=nn.Conv2d(8, 16, 5), pool2=nn.MaxPool2d(2),
                     act2=act(), flatten=nn.Flatten(), fc1=nn.Linear(left, 128), act3=act(), fc2=nn.Linear(128, classes))


def cnn(inputs, classes):
    channels, height, width = inputs
    return _sequence(conv1=nn.Conv2d(channels, 32, 5, padding=2), relu1=nn.ReLU(), pool1=nn.MaxPool2d(2),
                     conv2=nn.Conv2d(32, 64, 5, padding=2), relu2=nn.ReLU(), pool2=nn.MaxPool2d(2), flatten=nn.Flatten(),
                     fc1=nn.Linear(64 * (height // 2 // 2) * (width // 2 // 2), 512), relu3=nn.ReLU(), fc2=nn.Linear(512, classes))


class _Block(nn.Module):
    """relu(conv-bn-relu-conv-bn(x) + shortcut(x))."""

    def __init__(self, inputs, channels, stride):
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, channels, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(channels)
        self.conv2 = nn.Conv2d(channels, channels, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(channels)
        self.projects = stride != 1 or inputs != channels
        if self.projects:
            self.shortcut = nn.Conv2d(inputs, channels, 1, stride, bias=False)
            self.shortcut_bn = nn.BatchNorm2d(channels)

    def forward(self, x):
        y = self.bn2(self.conv2(torch.relu(self.bn1(self.conv1(x)))))
        return torch.relu(y + (self.shortcut_bn(self.shortcut(x)) if self.projects else x))


def _residual(inputs, classes, **stages):
    return _sequence(conv=nn.Conv2d(inputs[0], 16, 3, 1, 1, bias=False), bn=nn.BatchNorm2d(16), relu=nn.ReLU(), **stages,
                     pool=nn.AdaptiveAvgPool2d(1), flatten=nn.Flatten(), fc=nn.Linear(64, classes))


def resnet8(inputs, classes):
    return _residual(inputs, classes, stage1=_Block(16, 16, 1), stage2=_Block(16, 32, 2), stage3=_Block(32, 64, 2))


def resnet20(inputs, classes):
    def stage(before, channels, stride):
        return _sequence(block1=_Block(before, channels, stride), block2=_Block(channels, channels, 1), block3=_Block(channels, channels, 1))
    return _residual(inputs, classes, stage1=stage(16, 16, 1), stage2=stage(16, 32, 2), stage3=stage(32, 64, 2))


MODELS = {make.__name__: make for make in (linear, softmax, mlp, wide, lenet, cnn, resnet8, resnet20)}


def model(name, inputs=(1, 28, 28), classes=10, **options):
    """A built-in model: model("resnet8"), model("wide", inputs=(3, 32, 32), width=512). Its initial values are PyTorch's.

    inputs    channels, height, width of an image
    options   the keys model.OPTION of `gradlag list models`
    """
    if name not in MODELS:
        raise ValueError(f"there is no built-in model '{name}': choose one of {', '.join(MODELS)}")
    return MODELS[name](tuple(inputs), classes, **options)


def of(settings):
    """The built-in model of a run with these settings."""
    if settings["model"] not in MODELS:
        raise ValueError(f"the run trained model={settings['model']}, which is not in this package: give your module, load(module, path)")
    inputs, classes = datasets.shape(settings)
    options = {key[len("model."):]: value for key, value in settings.items() if key.startswith("model.")}
    return model(settings["model"], inputs, classes, **options)
