"""Scales queries by their position, in steps, which keeps attention over long contexts sharp.

    y[t] = x[t] * (1 + growth * log(1 + floor((p[t] + 1) / step)))       (Nakanishi 2025; Llama 4)

x [T, N, H], p the positions [T]. Arithmetic is float32; y is rounded to the dtype of x.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from baton.kernels.cpu import operators
from baton.kernels.positions import query_temperature_cpu as cpu


@dataclass(frozen=True, slots=True, kw_only=True)
class Temperature:
    growth: float
    step: float
    """In tokens."""


def query_temperature(x: Tensor, positions: Tensor, temperature: Temperature) -> Tensor:
    if len(positions) != len(x) or positions.dtype is not torch.int64:
        raise ValueError(f"an int64 position each is wanted: {x.shape=} {positions.shape=}")
    if operators.runs(x):
        return cpu.query_temperature(x, positions, temperature.growth, temperature.step)
    return reference(x, positions, temperature)


def reference(x: Tensor, positions: Tensor, temperature: Temperature) -> Tensor:
    steps = torch.floor((positions.float() + 1) / temperature.step)
    factors = 1 + temperature.growth * torch.log1p(steps)
    return (x.float() * factors.view(-1, *[1] * (x.dim() - 1))).to(x.dtype)
