#!/usr/bin/python3
"""gpt_golden.py — writes gpt_golden.h: loss and gradient of a small model=gpt, from PyTorch in float64.

    python3 tests/worker/gpt_golden.py > tests/worker/gpt_golden.h

The parameters, in the order of the parameter table, and the tokens follow from formulas, which test_sequence.c repeats."""
import torch
from torch.nn import functional

VOCABULARY, WIDTH, HEADS, POSITIONS, BATCH = 7, 6, 2, 5, 2


def shapes():
    block = {"ln1.weight": (WIDTH,), "ln1.bias": (WIDTH,), "attn.qkv.weight": (3 * WIDTH, WIDTH), "attn.proj.weight": (WIDTH, WIDTH),
             "ln2.weight": (WIDTH,), "ln2.bias": (WIDTH,), "mlp.up.weight": (4 * WIDTH, WIDTH), "mlp.down.weight": (WIDTH, 4 * WIDTH)}
    return {"wte.weight": (VOCABULARY, WIDTH), "wpe.weight": (POSITIONS, WIDTH), **{f"h0.{name}": shape for name, shape in block.items()},
            "ln_f.weight": (WIDTH,), "ln_f.bias": (WIDTH,), "head.weight": (VOCABULARY, WIDTH)}


def parameters():
    made, first = {}, 0
    for name, shape in shapes().items():
        count = torch.Size(shape).numel()
        values = ((torch.arange(first, first + count) * 37) % 101 - 50) / 64
        made[name] = values.to(torch.float64).reshape(shape).requires_grad_()
        first += count
    return made


def attention(x):
    query, key, value = (part.reshape(BATCH, POSITIONS, HEADS, -1).transpose(1, 2) for part in x.split(WIDTH, dim=2))
    scores = query @ key.transpose(2, 3) / (WIDTH // HEADS) ** 0.5
    future = torch.ones(POSITIONS, POSITIONS, dtype=torch.bool).triu(1)
    probabilities = scores.masked_fill(future, float("-inf")).softmax(3)
    return (probabilities @ value).transpose(1, 2).reshape(BATCH, POSITIONS, WIDTH)


def logits(p, tokens):
    def norm(x, name):
        return functional.layer_norm(x, (WIDTH,), p[f"{name}.weight"], p[f"{name}.bias"], 1e-5)
    x = p["wte.weight"][tokens] + p["wpe.weight"]
    x = x + attention(norm(x, "h0.ln1") @ p["h0.attn.qkv.weight"].T) @ p["h0.attn.proj.weight"].T
    x = x + functional.gelu(norm(x, "h0.ln2") @ p["h0.mlp.up.weight"].T) @ p["h0.mlp.down.weight"].T
    return norm(x, "ln_f") @ p["head.weight"].T


def main():
    p = parameters()
    places = torch.arange(BATCH * POSITIONS)
    tokens, labels = (5 * places) % VOCABULARY, (3 * places + 1) % VOCABULARY
    loss = functional.cross_entropy(logits(p, tokens.reshape(BATCH, POSITIONS)).reshape(-1, VOCABULARY), labels)
    loss.backward()
    gradient = torch.cat([value.grad.reshape(-1) for value in p.values()]).tolist()
    print(f"/* gpt_golden.h — made by gpt_golden.py with torch {torch.__version__}. */")
    print(f"enum {{ GOLDEN_CLASSES = {VOCABULARY}, GOLDEN_POSITIONS = {POSITIONS}, GOLDEN_BATCH = {BATCH}, GOLDEN_COUNT = {len(gradient)} }};")
    print(f'#define GOLDEN_WIDTH "{WIDTH}"\n#define GOLDEN_HEADS "{HEADS}"\n#define GOLDEN_LOSS {loss.item():.17g}')
    print("static const float golden_gradient[GOLDEN_COUNT] = {")
    for first in range(0, len(gradient), 6):
        print("    " + " ".join(f"{value:.9e}f," for value in gradient[first:first + 6]))
    print("};")


if __name__ == "__main__":
    main()
