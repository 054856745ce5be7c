"""Compiled selection of a rank's own pairs; see source/experts/expert_slots.cpp."""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor

from baton.kernels.cpu.operators import Call, call


class Choice(Protocol):
    """See `Routed` of kernels/experts/routing.py."""

    @property
    def experts(self) -> Tensor: ...
    @property
    def shares(self) -> Tensor: ...


class Slots(Protocol):
    """See `ExpertSlots` of kernels/experts/expert_slots.py."""

    @property
    def starts(self) -> Tensor: ...
    @property
    def slots(self) -> Tensor: ...
    @property
    def first(self) -> int: ...
    @property
    def count(self) -> int: ...
    @property
    def loads(self) -> Tensor: ...


def own_pairs(routed: Choice, slots: Slots) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Returns slots, shares, pairs, stops."""
    shape = routed.experts.shape
    own, pairs = (torch.empty(shape, dtype=torch.int32) for _ in range(2))
    stops = torch.empty(slots.count, dtype=torch.int32)
    call(
        Call(
            "own_pairs",
            rows=len(own),
            inputs={
                "experts": routed.experts,
                "shares": routed.shares,
                "starts": slots.starts,
                "slots": slots.slots,
                "loads": slots.loads,
                "stops": stops,
                "num_choices": shape[1],
                "first_slot": slots.first,
                "num_slots": slots.count,
            },
            outputs={"own": own, "pairs": pairs},
            alone_rows=len(own),
        )
    )
    return own, routed.shares, pairs, stops
