"""Compresses a context to entries, window by window; kernels/cache_write/compress.py has the
maths."""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor, nn

from baton.engine.layers.linear import Linear
from baton.engine.layers.norm import RmsNorm
from baton.engine.layers.rope import RotaryAngles
from baton.engine.mesh.split import Split
from baton.kernels.cache_write.compress import close_windows
from baton.kernels.cache_write.windows import EntryNorm, RotaryFrequencies, Windows
from baton.kernels.paging.paged_rows import write_rows
from baton.kernels.paging.sequences import Sequences


class Compressor(nn.Module):
    float32_names: ClassVar[tuple[str, ...]] = ("bias",)
    """The bias of the gates, kept in float32."""

    def __init__(self, width: int, windows: Windows, angles: RotaryAngles, norm_eps: float) -> None:
        super().__init__()
        self.windows = windows
        rows = windows.num_series * windows.width
        self.inputs = Linear(width, rows, rows, split=Split.NONE)  # values, gates
        self.bias = nn.Parameter(torch.empty(windows.num_tokens, rows, device="meta"), False)
        self.norm = RmsNorm(windows.width, norm_eps)
        self.angles = angles

    def forward(self, x: Tensor, arena: Tensor, sequences: Sequences) -> None:
        """Write the rows of x [T, D] into the arena, and the entries of windows that they
        complete."""
        write_rows(self.inputs(x), arena, sequences)
        sequences.wait_for_others(arena)  # a window may begin with tokens of other ranks
        norm = EntryNorm(self.norm.scale(), self.norm.eps)
        rotary = RotaryFrequencies(self.angles.frequencies, self.angles.attention_factor)
        close_windows(arena, self.windows, self.bias, norm, rotary, sequences, len(x))
        sequences.wait_for_others(arena)
