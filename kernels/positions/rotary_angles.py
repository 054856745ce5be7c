"""The cosines and sines of rotary positions:   angle[t, i] = position[t] * frequency[i]

T tokens, R/2 pairs of dimensions. Angles are float32; `factor` scales both (YaRN).
"""

from __future__ import annotations

import torch
from torch import Tensor

from baton.kernels.cpu import operators
from baton.kernels.positions import rotary_angles_cpu as cpu


def rotary_angles(
    positions: Tensor, frequencies: Tensor, factor: float = 1.0
) -> tuple[Tensor, Tensor]:
    """positions [T] and frequencies [R/2] -> cos and sin, float32 [T, R/2] each."""
    if frequencies.is_cuda:
        from baton.kernels.positions import (
            rotary_angles_gpu as gpu,  # Triton, which CPUs do without
        )

        return gpu.rotary_angles(positions, frequencies, factor)
    if operators.runs(frequencies):
        return cpu.rotary_angles(positions, frequencies, factor)
    return reference(positions, frequencies, factor)


def reference(positions: Tensor, frequencies: Tensor, factor: float = 1.0) -> tuple[Tensor, Tensor]:
    angles = torch.outer(positions.float(), frequencies)
    cos, sin = angles.cos(), angles.sin()
    return (cos, sin) if factor == 1.0 else (cos * factor, sin * factor)
