"""The gate of GPT-OSS:   y = (up + 1) * gate * sigmoid(alpha * gate),  both cut off at a limit.

gate is at most `limit`, up within `limit` of 0. Gate and up lie side by side. With an offset of 0
instead of 1, and alpha 1, it is SwiGLU cut off, which DeepSeek V4 has.
"""

from __future__ import annotations

import torch
from torch import Tensor

from baton.kernels.cpu import operators
from baton.kernels.elementwise import clamped_swiglu_cpu as cpu


def clamped_swiglu(gate_up: Tensor, alpha: float, limit: float, offset: float = 1.0) -> Tensor:
    """[T, 2F] -> [T, F]; the first F columns are the gate. Where experts are compiled, they do it
    themselves."""
    if gate_up.is_cuda:
        from baton.kernels.elementwise import gates_gpu as gpu

        return gpu.clamped_swiglu(gate_up, alpha, limit, offset)
    if operators.runs(gate_up):
        return cpu.clamped_swiglu(gate_up, alpha, limit, offset)
    return reference(gate_up, alpha, limit, offset)


def reference(gate_up: Tensor, alpha: float, limit: float, offset: float) -> Tensor:
    gate, up = gate_up.chunk(2, dim=-1)
    gate, up = gate.clamp(max=limit), up.clamp(-limit, limit)
    return gate * torch.sigmoid(gate * alpha) * (up + offset)
