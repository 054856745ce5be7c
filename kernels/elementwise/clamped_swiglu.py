"""The gate of GPT-OSS:   y = (up + 1) * gate * sigmoid(alpha * gate),  both clamped.

gate is clamped to at most `limit`, up to [-limit, limit]. Gate and up are concatenated. With offset
0 instead of 1, and alpha 1, it is the clamped SwiGLU of DeepSeek V4.
"""

from __future__ import annotations

import torch
from torch import Tensor

from baton.kernels.cpu import operators
from baton.kernels.elementwise import clamped_swiglu_cpu as cpu


def clamped_swiglu(gate_up: Tensor, alpha: float, limit: float, offset: float = 1.0) -> Tensor:
    """[T, 2F] -> [T, F]; the first F columns are the gate. Compiled experts have it built in."""
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
