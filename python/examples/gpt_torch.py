"""A byte-level transformer on any text file (model.path=FILE).

    gradlag run model=external model.command="python3 python/examples/gpt_torch.py" model.path=README.md \
        mode=async workers=4 optimizer=adamw lr=0.003
"""
import pathlib

import torch
from torch import nn
from torch.nn import functional

import gradlag.torch


class Block(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def attention(self, x):
        batch, length, width = x.shape
        q, k, v = (each.view(batch, length, self.heads, -1).transpose(1, 2) for each in self.qkv(x).chunk(3, dim=2))
        scores = q @ k.transpose(2, 3) * (width // self.heads) ** -0.5
        future = torch.ones(length, length, dtype=torch.bool).triu(1)
        weights = scores.masked_fill(future, float("-inf")).softmax(dim=3)
        return self.out((weights @ v).transpose(1, 2).reshape(batch, length, width))

    def forward(self, x):
        x = x + self.attention(self.norm1(x))
        return x + self.mlp(self.norm2(x))


class GPT(nn.Module):
    def __init__(self, request):
        super().__init__()
        width = request.option("width", 64)
        self.context = request.option("context", 64)
        self.token, self.position = nn.Embedding(256, width), nn.Embedding(self.context, width)
        self.blocks = nn.Sequential(*(Block(width, request.option("heads", 4)) for _ in range(request.option("layers", 2))))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, 256, bias=False)
        for p in self.parameters():
            if p.dim() > 1:
                nn.init.normal_(p, std=0.02)

    def forward(self, tokens):
        x = self.token(tokens) + self.position(torch.arange(tokens.shape[1]))
        return self.head(self.norm(self.blocks(x))).transpose(1, 2)  # [batch, 256, length], as cross_entropy reads it


class Windows(torch.utils.data.Dataset):
    """Samples: consecutive windows of `context` bytes. The target of a window is the window one byte later."""

    def __init__(self, text, context):
        self.text, self.context = torch.frombuffer(bytearray(text), dtype=torch.uint8).long(), context

    def __len__(self):
        return max(0, (len(self.text) - 1) // self.context)

    def __getitem__(self, i):
        window = self.text[i * self.context:(i + 1) * self.context + 1]
        return window[:-1], window[1:]


def data(request):
    path, context = request.option("path", __file__), request.option("context", 64)
    text = pathlib.Path(path).read_bytes()
    cuts = [0, len(text) * 90 // 100, len(text) * 95 // 100, len(text)]
    return {split: Windows(text[a:b], context) for split, a, b in zip(("train", "validation", "test"), cuts, cuts[1:])}


gradlag.torch.serve(GPT, data, classes=256, head="head")
