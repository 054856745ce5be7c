"""GELU (Hendrycks and Gimpel 2016), exact or in its tanh form, alone or as the gate of GeGLU.

    exact   y = x / 2 (1 + erf(x / sqrt 2))
    tanh    y = x / 2 (1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3)))
    GeGLU   y = gelu(gate) * up

T tokens, F feed-forward width. Gate and up are concatenated, as one matrix product writes them.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn import functional

from baton.kernels.cpu import operators
from baton.kernels.elementwise import elementwise_cpu as cpu


def gelu(x: Tensor) -> Tensor:
    if operators.runs(x):
        return cpu.apply("gelu", x)
    return functional.gelu(x)


def gelu_tanh(x: Tensor) -> Tensor:
    if operators.runs(x):
        return cpu.apply("gelu_tanh", x)
    return functional.gelu(x, approximate="tanh")


def gelu_tanh_mul(gate_up: Tensor) -> Tensor:
    """[T, 2F] -> [T, F]; the first F columns are the gate."""
    if gate_up.is_cuda:
        from baton.kernels.elementwise import gates_gpu as gpu  # Triton, which CPUs do without

        return gpu.gelu_tanh_mul(gate_up)
    if operators.runs(gate_up):
        return cpu.gate("gelu_tanh_mul", gate_up)
    gate, up = gate_up.chunk(2, dim=-1)
    return functional.gelu(gate, approximate="tanh").mul_(up)


def reference(x: Tensor) -> Tensor:
    """The definition of the exact form, in float32."""
    wide = x.float()
    return (wide / 2 * (1 + torch.erf(wide / math.sqrt(2)))).to(x.dtype)


def reference_tanh(x: Tensor) -> Tensor:
    """The definition of the tanh form, in float32."""
    wide = x.float()
    inner = math.sqrt(2 / math.pi) * (wide + 0.044715 * wide**3)
    return (wide / 2 * (1 + torch.tanh(inner))).to(x.dtype)
