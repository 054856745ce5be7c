"""Compiled choice of experts; see source/experts/routing.cpp."""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor

from baton.kernels.cpu.operators import Call, call

SCORES = ("softmax", "sigmoid", "softmax of chosen", "sigmoid of chosen", "root of softplus")
"""Score functions in the order in which source/experts/routing.cpp numbers them."""
ALONE_ROWS = 8


class Groups(Protocol):
    @property
    def num_groups(self) -> int: ...
    @property
    def num_chosen(self) -> int: ...
    @property
    def num_best(self) -> int: ...


class Lookup(Protocol):
    """See `ByToken` of kernels/experts/routing.py."""

    @property
    def tokens(self) -> Tensor: ...
    @property
    def table(self) -> Tensor: ...


class Choosing(Protocol):
    """See `Routing` of kernels/experts/routing.py."""

    @property
    def num_experts(self) -> int: ...
    @property
    def num_choices(self) -> int: ...
    @property
    def score(self) -> str: ...
    @property
    def is_normalised(self) -> bool: ...
    @property
    def scale(self) -> float: ...
    @property
    def groups(self) -> Groups | None: ...


def route(
    logits: Tensor,
    routing: Choosing,
    bias: Tensor | None,
    correction: Tensor | None,
    by_token: Lookup | None = None,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Returns experts, shares, pairs, stops. A tape keeps `stops` where the first pass put them."""
    shape = len(logits), routing.num_choices
    experts = torch.empty(shape, dtype=torch.int32)
    shares, pairs = torch.empty(shape), torch.empty(shape, dtype=torch.int32)
    stops = torch.empty(routing.num_experts, dtype=torch.int32)
    groups = routing.groups
    call(
        Call(
            "route",
            rows=len(logits),
            inputs={
                "logits": logits.contiguous(),
                "bias": bias,
                "correction": correction,
                "stops": stops,
                "tokens": None if by_token is None else by_token.tokens,
                "table": None if by_token is None else by_token.table,
                "num_experts": routing.num_experts,
                "num_choices": routing.num_choices,
                "score": SCORES.index(routing.score),
                "is_normalised": routing.is_normalised,
                "num_groups": 1 if groups is None else groups.num_groups,
                "num_chosen_groups": 1 if groups is None else groups.num_chosen,
                "num_best": 1 if groups is None else groups.num_best,
                "scale": routing.scale,
            },
            outputs={"experts": experts, "shares": shares, "pairs": pairs},
            alone_rows=ALONE_ROWS,
        )
    )
    return experts, shares, pairs, stops
