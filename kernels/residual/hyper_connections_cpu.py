"""Compiled hyper-connections; see source/residual/hyper_connections.cpp."""

from __future__ import annotations

import torch
from torch import Tensor

from baton.kernels.cpu.operators import Call, call, of_dtype, small_rows
from baton.kernels.residual.mixture import Mixture

MAX_STREAMS = 16


def spread(x: Tensor, num_streams: int) -> Tensor:
    tokens, width = x.shape
    streams = x.new_empty(tokens, num_streams, width)
    call(
        Call(
            of_dtype("spread_streams", x.dtype),
            rows=tokens,
            inputs={"x": x.contiguous(), "num_streams": num_streams, "width": width},
            outputs={"streams": streams},
            alone_rows=small_rows(num_streams * width * x.element_size()),
        )
    )
    return streams


def norm(streams: Tensor, eps: float) -> Tensor:
    tokens, num_streams, width = streams.shape
    normed = torch.empty(tokens, num_streams * width)
    call(
        Call(
            of_dtype("norm_streams", streams.dtype),
            rows=tokens,
            inputs={
                "streams": streams.contiguous(),
                "width": num_streams * width,
                "eps": eps,
            },
            outputs={"normed": normed},
            alone_rows=small_rows(num_streams * width * normed.element_size()),
        )
    )
    return normed


def collapse(streams: Tensor, mixed: Tensor, mixture: Mixture) -> Tensor:
    x = streams.new_empty(len(streams), streams.shape[2])
    call(_mix(streams, mixed, mixture, x, None, None))
    return x


def connect(streams: Tensor, mixed: Tensor, mixture: Mixture) -> tuple[Tensor, Tensor, Tensor]:
    tokens, num_streams, width = streams.shape
    x, post = streams.new_empty(tokens, width), torch.empty(tokens, num_streams)
    comb = torch.empty(tokens, num_streams, num_streams)
    call(_mix(streams, mixed, mixture, x, post, comb))
    return x, post, comb


def _mix(  # as the operator
    streams: Tensor,
    mixed: Tensor,
    mixture: Mixture,
    x: Tensor,
    post: Tensor | None,
    comb: Tensor | None,
) -> Call:
    tokens, num_streams, width = streams.shape
    return Call(
        of_dtype("mix_streams", streams.dtype),
        rows=tokens,
        inputs={
            "streams": streams.contiguous(),
            "mixed": mixed.contiguous(),
            "scale": mixture.scale,
            "base": mixture.base,
            "num_streams": num_streams,
            "width": width,
            "num_rounds": mixture.num_rounds,
            "eps": mixture.eps,
        },
        outputs={"x": x, "post": post, "comb": comb},
    )


def expand(streams: Tensor, y: Tensor, post: Tensor, comb: Tensor) -> Tensor:
    tokens, num_streams, width = streams.shape
    out = torch.empty_like(streams)
    call(
        Call(
            of_dtype("expand_streams", streams.dtype),
            rows=tokens,
            inputs={
                "streams": streams.contiguous(),
                "y": y.contiguous(),
                "post": post,
                "comb": comb,
                "num_streams": num_streams,
                "width": width,
            },
            outputs={"expanded": out},
            alone_rows=small_rows(num_streams * width * out.element_size()),
        )
    )
    return out
