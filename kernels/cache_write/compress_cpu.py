"""Compiled compression of rows in the paged cache; see source/cache_write/compress.cpp."""

from __future__ import annotations

from torch import Tensor

from baton.kernels.cache_write.windows import EntryNorm, RotaryFrequencies, Windows
from baton.kernels.cpu.operators import Call, Pass, call, of_dtype
from baton.kernels.paging.paged_rows_cpu import places_of
from baton.kernels.paging.sequences import Sequences


def close_windows(  # noqa: PLR0913  # as the kernel
    arena: Tensor,
    windows: Windows,
    bias: Tensor,
    norm: EntryNorm,
    rotary: RotaryFrequencies,
    sequences: Sequences,
    num_tokens: int,
) -> None:
    made = Call(
        of_dtype("close_windows", arena.dtype),
        rows=num_tokens,
        inputs={
            "arena": arena,
            "bias": bias,
            "norm_weight": norm.weight,
            "frequencies": rotary.frequencies,
            "window_tokens": windows.num_tokens,
            "num_series": windows.num_series,
            "width": windows.width,
            "half": len(rotary.frequencies),
            "eps": norm.eps,
            "factor": rotary.factor,
            **places_of(sequences),
        },
        outputs={},
    )
    call(made, Pass(num_tokens=num_tokens, num_requests=sequences.num_requests))
