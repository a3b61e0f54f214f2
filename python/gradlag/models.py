"""The built-in models in PyTorch, with the tensors' names of a checkpoint. Their source is worker/model/model_NAME.c."""
from collections import OrderedDict

try:
    import torch
except ModuleNotFoundError:
    raise ImportError("gradlag.load and gradlag.model need PyTorch: python3 -m pip install torch") from None
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


class _Attention(nn.Module):
    """Causal self-attention. Inputs and results are [samples, positions, width]."""

    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(width, 3 * width, bias=False)
        self.proj = nn.Linear(width, width, bias=False)

    def forward(self, x):
        samples, positions, width = x.shape
        query, key, value = (part.view(samples, positions, self.heads, -1).transpose(1, 2) for part in self.qkv(x).split(width, 2))
        scores = query @ key.transpose(2, 3) / (width // self.heads) ** 0.5
        later = torch.ones(positions, positions, dtype=torch.bool, device=x.device).triu(1)
        mixed = scores.masked_fill(later, float("-inf")).softmax(3) @ value
        return self.proj(mixed.transpose(1, 2).reshape(x.shape))


class _Decoder(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.ln1 = nn.LayerNorm(width)
        self.attn = _Attention(width, heads)
        self.ln2 = nn.LayerNorm(width)
        self.mlp = _sequence(up=nn.Linear(width, 4 * width, bias=False), gelu=nn.GELU(), down=nn.Linear(4 * width, width, bias=False))

    def forward(self, x):
        x = x + self.attn(self.ln1(x))
        return x + self.mlp(self.ln2(x))


class _Gpt(nn.Module):
    """Logits of the next token, [samples, positions, classes], from token numbers [samples, positions]."""

    def __init__(self, context, classes, layers, width, heads, tied):
        super().__init__()
        self.wte = nn.Embedding(classes, width)
        self.wpe = nn.Embedding(context, width)
        self.blocks = [_Decoder(width, heads) for _ in range(layers)]
        for number, block in enumerate(self.blocks):
            self.add_module(f"h{number}", block)
        self.ln_f = nn.LayerNorm(width)
        if not tied:
            self.head = nn.Linear(width, classes, bias=False)
        self.tied = tied

    def forward(self, tokens):
        x = self.wte(tokens) + self.wpe.weight[:tokens.shape[1]]
        for block in self.blocks:
            x = block(x)
        x = self.ln_f(x)
        return nn.functional.linear(x, self.wte.weight) if self.tied else self.head(x)


def gpt(inputs, classes, layers=2, width=64, heads=4, tied="no"):
    return _Gpt(inputs[1], classes, layers, width, heads, tied == "yes")


MODELS = {make.__name__: make for make in (linear, softmax, mlp, wide, lenet, cnn, resnet8, resnet20, gpt)}


def model(name, inputs=(1, 28, 28), classes=10, **options):
    """A built-in model: model("resnet8"), model("wide", inputs=(3, 32, 32), width=512). Its initial values are PyTorch's.

    inputs    channels, height, width of an image; 1, positions, 1 of a window of tokens: model("gpt", (1, 64, 1), 256)
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
