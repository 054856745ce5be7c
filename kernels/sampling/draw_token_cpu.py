"""The operator of source/draw_token.cpp."""

from __future__ import annotations

import torch
from torch import Tensor

from baton.kernels.cpu.operators import Call, call
from baton.kernels.sampling.token_filter import Filters


def draw_token(
    scores: Tensor,
    rows: Tensor,
    best: Tensor,
    temperature: Tensor,
    filters: Filters,
    streams: Tensor,
) -> Tensor:
    """Of scores [S, V] and their best tokens [S], the tokens [n] that some rows [n] draw."""
    drawn = torch.empty_like(rows)
    call(
        Call(
            "draw_token_f32",
            rows=len(rows),
            inputs=(
                scores,
                rows,
                best,
                temperature,
                filters.top_p,
                filters.min_p.log(),
                filters.top_k,
                streams,
            ),
            outputs=(drawn,),
            ints=(scores.shape[-1], scores.stride(0)),
        )
    )
    return drawn
