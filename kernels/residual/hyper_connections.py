"""Hyper-connections (Xie et al. 2026): a residual of n streams, mixed depending on their content.

    mixed = W norm(streams, all n D as one)                                          [T, M] float32
    pre, post = sigmoid(a_1 mixed_1 + b_1) + eps, 2 sigmoid(a_2 mixed_2 + b_2)       [T, n]
    comb = softmax over rows of (a_3 mixed_3 + b_3), then made doubly stochastic     [T, n, n]

    x          = sum over i of  pre[i] stream[i]                    input of attention, or experts
    stream'[j] = post[j] y + sum over i of  comb[i, j] stream[i]    y is their output

Rows and columns of `comb` are scaled alternately, columns last, until both add up to one (Sinkhorn
and Knopp), so that streams neither grow nor fade. All is float32 except streams, x and y. After the
last block streams are only merged: then M is n, and there is one scale a.

T tokens, n streams, D width; M = 2n + n n.
"""

from __future__ import annotations

import torch
from torch import Tensor

from baton.kernels.cpu import operators
from baton.kernels.residual import hyper_connections_cpu as cpu
from baton.kernels.residual.mixture import Mixture


def spread_streams(x: Tensor, num_streams: int) -> Tensor:
    """x [T, D] -> [T, n, D], n copies"""
    if operators.runs(x):
        return cpu.spread(x, num_streams)
    return x.unsqueeze(1).expand(-1, num_streams, -1).contiguous()


def norm_streams(streams: Tensor, eps: float) -> Tensor:
    """[T, n, D] -> float32 [T, n D] of root mean square 1"""
    if operators.runs(streams):
        return cpu.norm(streams, eps)
    flat = streams.flatten(1).float()
    return flat * (flat.square().mean(-1, keepdim=True) + eps).rsqrt()


def collapse_streams(streams: Tensor, mixed: Tensor, mixture: Mixture) -> Tensor:
    """[T, n, D] -> [T, D]"""
    _check(streams, mixed, mixture, streams.shape[1])
    if _is_compiled(streams):
        return cpu.collapse(streams, mixed, mixture)
    return _collapse(streams, mixed * mixture.scale + mixture.base, mixture.eps)


def connect_streams(
    streams: Tensor, mixed: Tensor, mixture: Mixture
) -> tuple[Tensor, Tensor, Tensor]:
    """[T, n, D] -> x [T, D], and float32 post [T, n] and comb [T, n, n], for `expand_streams`."""
    n = streams.shape[1]
    _check(streams, mixed, mixture, 2 * n + n * n)
    if _is_compiled(streams):
        return cpu.connect(streams, mixed, mixture)
    return reference(streams, mixed, mixture)


def expand_streams(streams: Tensor, y: Tensor, post: Tensor, comb: Tensor) -> Tensor:
    """Adds y, the output of attention or a feed-forward, to the streams: [T, n, D]."""
    if _is_compiled(streams):
        return cpu.expand(streams, y, post, comb)
    mixed = comb.transpose(1, 2) @ streams.float()
    return (post.unsqueeze(-1) * y.float().unsqueeze(1) + mixed).to(streams.dtype)


def reference(streams: Tensor, mixed: Tensor, mixture: Mixture) -> tuple[Tensor, Tensor, Tensor]:
    """The definition of `connect_streams`."""
    n, eps = streams.shape[1], mixture.eps
    sizes = [n, n, n * n]
    parts = zip(
        torch.split(mixed, sizes, dim=1),
        mixture.scale,
        torch.split(mixture.base, sizes),
        strict=True,
    )
    pre, post, comb = (part * scale + base for part, scale, base in parts)
    comb = comb.view(-1, n, n).softmax(-1) + eps
    comb = comb / (comb.sum(-2, keepdim=True) + eps)
    for _ in range(mixture.num_rounds - 1):
        comb = comb / (comb.sum(-1, keepdim=True) + eps)
        comb = comb / (comb.sum(-2, keepdim=True) + eps)
    return _collapse(streams, pre, eps), 2 * post.sigmoid(), comb


def _collapse(streams: Tensor, gates: Tensor, eps: float) -> Tensor:
    pre = gates.sigmoid() + eps
    return (pre.unsqueeze(-1) * streams.float()).sum(1).to(streams.dtype)


def _is_compiled(streams: Tensor) -> bool:
    return streams.shape[1] <= cpu.MAX_STREAMS and operators.runs(streams)


def _check(streams: Tensor, mixed: Tensor, mixture: Mixture, num_mixed: int) -> None:
    if mixed.shape != (len(streams), num_mixed) or mixture.base.shape != (num_mixed,):
        raise ValueError(f"shapes do not fit: {streams.shape=} {mixed.shape=} {mixture=}")
