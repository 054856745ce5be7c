"""The gate of GPT-OSS:   y = (up + 1) * gate * sigmoid(alpha * gate),  both cut off at a limit.

gate is at most `limit`, up within `limit` of 0. Gate and up lie side by side.
"""

from __future__ import annotations

import torch
from torch import Tensor


def clamped_swiglu(gate_up: Tensor, alpha: float, limit: float) -> Tensor:
    """[T, 2F] -> [T, F]; the first F columns are the gate. Where experts are compiled, they do it
    themselves."""
    gate, up = gate_up.chunk(2, dim=-1)
    gate, up = gate.clamp(max=limit), up.clamp(-limit, limit)
    return gate * torch.sigmoid(gate * alpha) * (up + 1)
