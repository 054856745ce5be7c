"""Mixture of experts: each token through some feed-forwards of many, weighted and added.

    out[t] = sum over c of  p[t, c] * down[e] (act(gate[e] x[t]) * up[e] x[t]),  e = experts[t, c]

    pairs (t, c) sorted by expert    | expert 0   | 1 | 2        | ...             P = T C pairs
                                     0            ^ stops[0]     ^ stops[2] ...
    grouped product                  y[p] = W[e of p] x[p]

Where the groups end stays on the device: no pass waits for it, and graphs can hold it. A pair's
result depends on itself alone, and a token's pairs are added in the order of its choices.

T tokens, C choices a token, E experts, D width, F feed-forward width.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from baton.kernels.linear import GATES


@dataclass(frozen=True, slots=True)
class Groups:
    """Pairs of token and choice, sorted by expert."""

    pairs: Tensor
    """[P] int64, token * C + choice, in the order of the groups."""
    stops: Tensor
    """[E] int32: where the group of each expert ends."""


def group_by_expert(experts: Tensor, num_experts: int) -> Groups:
    """experts [T, C] of integers below E; equal ones keep their order."""
    flat = experts.flatten()
    ranked, pairs = flat.sort(stable=True)
    every = torch.arange(num_experts, device=flat.device, dtype=flat.dtype)
    return Groups(pairs, torch.searchsorted(ranked, every, right=True).to(torch.int32))


def grouped_linear(x: Tensor, weights: Tensor, stops: Tensor) -> Tensor:
    """x [P, K] sorted by expert, weights [E, N, K] -> [P, N], each row by its expert's."""
    if x.dim() != 2 or weights.dim() != 3 or x.shape[1] != weights.shape[2]:
        raise ValueError(f"shapes do not fit: {x.shape=} {weights.shape=}")
    if stops.shape != weights.shape[:1] or stops.dtype is not torch.int32:
        raise ValueError(f"{len(weights)} experts with stops {stops.dtype} {tuple(stops.shape)}")
    if x.is_cuda:
        from baton.kernels.gpu.grouped_linear import grouped_linear as on_gpu

        return on_gpu(x, weights, stops)
    y = x.new_empty(len(x), weights.shape[1])
    start = 0
    for expert, stop in enumerate(stops.tolist()):
        if stop > start:
            y[start:stop] = functional.linear(x[start:stop], weights[expert])
        start = stop
    return y


def moe(
    x: Tensor,
    gate_up: Tensor,
    down: Tensor,
    experts: Tensor,
    shares: Tensor,
    activation: str = "silu",
) -> Tensor:
    """x [T, D] -> [T, D]; gate_up [E, 2F, D], down [E, D, F], experts and shares [T, C]."""
    num_choices = experts.shape[1]
    groups = group_by_expert(experts, len(gate_up))
    inner = grouped_linear(x[groups.pairs // num_choices], gate_up, groups.stops)
    outer = grouped_linear(GATES[activation](inner), down, groups.stops)
    by_pair = torch.empty_like(outer)
    by_pair[groups.pairs] = outer
    weighted = by_pair.view(len(x), num_choices, -1).float() * shares.float().unsqueeze(-1)
    return weighted.sum(1).to(x.dtype)


def reference(
    x: Tensor,
    gate_up: Tensor,
    down: Tensor,
    experts: Tensor,
    shares: Tensor,
    activation: str = "silu",
) -> Tensor:
    """The definition, token by token."""
    rows = []
    for token, chosen, weights in zip(x, experts.tolist(), shares.float(), strict=True):
        out = torch.zeros(down.shape[1], device=x.device)
        for expert, share in zip(chosen, weights, strict=True):
            inner = GATES[activation](functional.linear(token.unsqueeze(0), gate_up[expert]))
            out = out + share * functional.linear(inner, down[expert]).squeeze(0).float()
        rows.append(out.to(x.dtype))
    return torch.stack(rows)
