"""The operator of source/sampling/draw_token.cpp."""

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
    """The tokens [n] drawn for some rows [n] of scores [S, V], with best tokens [S]."""
    drawn, least = torch.empty_like(rows), filters.min_p.log()
    call(
        Call(
            "draw_token_f32",
            rows=len(rows),
            inputs={
                "scores": scores,
                "scored_rows": rows,
                "best": best,
                "temperature": temperature,
                "top_p": filters.top_p,
                "least": least,
                "top_k": filters.top_k,
                "streams": streams,
                "num_tokens": scores.shape[-1],
                "stride": scores.stride(0),
            },
            outputs={"drawn": drawn},
        )
    )
    return drawn
