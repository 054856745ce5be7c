"""Compiled cosines and sines of rotary positions; see source/positions/rotary_angles.cpp."""

from __future__ import annotations

from torch import Tensor

from baton.kernels.cpu.operators import Call, call, small_rows

COST = 8
"""Both functions take as long as copying this many times their results."""


def rotary_angles(positions: Tensor, frequencies: Tensor, factor: float) -> tuple[Tensor, Tensor]:
    width = len(frequencies)
    cos, sin = (frequencies.new_empty(len(positions), width) for _ in range(2))
    made = Call(
        "rotary_angles_f32",
        rows=len(positions),
        inputs={
            "positions": positions,
            "frequencies": frequencies,
            "width": width,
            "factor": factor,
        },
        outputs={"cos": cos, "sin": sin},
        alone_rows=small_rows(width * 4 * COST),
    )
    call(made)
    return cos, sin
