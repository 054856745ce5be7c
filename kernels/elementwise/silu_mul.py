"""The gate of SwiGLU (Shazeer 2020):   y = silu(gate) * up.

T tokens, F feed-forward width. Gate and up are concatenated, as one matrix product writes them.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from baton.kernels.cpu import operators
from baton.kernels.elementwise import elementwise_cpu as cpu


def silu_mul(gate_up: Tensor) -> Tensor:
    """[T, 2F] -> [T, F]; the first F columns are the gate."""
    if gate_up.is_cuda:
        from baton.kernels.elementwise import gates_gpu as gpu  # Triton, which CPUs do without

        return gpu.silu_mul(gate_up)
    if operators.runs(gate_up):
        return cpu.gate("silu_mul", gate_up)
    gate, up = gate_up.chunk(2, dim=-1)
    return functional.silu(gate).mul_(up)


def reference(gate_up: Tensor) -> Tensor:
    """The definition, in float32."""
    gate, up = gate_up.float().chunk(2, dim=-1)
    return (gate * torch.sigmoid(gate) * up).to(gate_up.dtype)
