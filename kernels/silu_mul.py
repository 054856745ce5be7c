"""The gate of SwiGLU (Shazeer 2020):   y = silu(gate) * up.

T tokens, F feed-forward width. Gate and up lie side by side, as one matrix product left them.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional


def silu_mul(gate_up: Tensor) -> Tensor:
    """[T, 2F] -> [T, F]; the first F columns are the gate."""
    gate, up = gate_up.chunk(2, dim=-1)
    return functional.silu(gate).mul_(up)


def reference(gate_up: Tensor) -> Tensor:
    """The definition, in float32."""
    gate, up = gate_up.float().chunk(2, dim=-1)
    return (gate * torch.sigmoid(gate) * up).to(gate_up.dtype)
