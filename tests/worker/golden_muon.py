#!/usr/bin/env python3
"""Prints the numbers of muon_agrees_with_float64 in test_muon.c: three steps of Muon in float64, written from the papers
(Jordan et al. 2024; Liu et al. 2025, arXiv:2502.16982; for the vector Loshchilov, Hutter 2019). Needs NumPy."""
import numpy

MOMENTUM, DECAY, RATES = 0.95, 0.05, (0.1, 0.05, 0.2)
BETA1, BETA2, EPSILON = 0.9, 0.95, 1e-8
SHAPES = (3, 5), (5, 3), (4,)


def drawn(shape, first, step):
    """Numbers that float32 represents exactly."""
    i = first + numpy.arange(numpy.prod(shape))
    return (((i * i * 5 + i * 7 + step * 11 + 3) % 61 - 30) / 32).reshape(shape)


def orthogonal(u):
    x = u.T if u.shape[0] > u.shape[1] else u
    x = x / (numpy.linalg.norm(x) + 1e-7)
    for _ in range(5):
        a = x @ x.T
        x = 3.4445 * x + (-4.7750 * a + 2.0315 * a @ a) @ x
    return x.T if u.shape[0] > u.shape[1] else x


def trained(shape, first):
    theta, v, s = drawn(shape, first, 7), 0, 0
    for step, rate in enumerate(RATES):
        g = drawn(shape, first, step)
        if len(shape) == 2:
            v = MOMENTUM * v + g
            move = 0.2 * max(shape) ** 0.5 * orthogonal(g + MOMENTUM * v)
        else:
            v = BETA1 * v + (1 - BETA1) * g
            s = BETA2 * s + (1 - BETA2) * g * g
            move = v / (1 - BETA1 ** (step + 1)) / (numpy.sqrt(s / (1 - BETA2 ** (step + 1))) + EPSILON)
        theta = theta - rate * (move + DECAY * theta)
    return theta.ravel()


at = 0
for shape in SHAPES:
    print(", ".join(f"{x:.9g}" for x in trained(shape, at)) + ",")
    at += int(numpy.prod(shape))
