"""Assigns (token, expert) pairs of a pass to the ranks that hold the experts.

    slot                  a place for one expert; rank r has the slots  r S .. (r + 1) S - 1
    copies of expert e    slots[starts[e]] .. slots[starts[e + 1] - 1]        at least one
    pair (t, c)           goes to copy  (hash(p[t, c]) * copies) / 2^16

p is the pair's routing weight, whose bits are hashed: the copy depends on the pair alone, not on
the batch, and every rank with p computes the same choice without communication.

    pairs of a rank       | slot 0 | slot 1     | ... |  of others ...         P in all
                                   ^ stops[0]         ^ stops[S - 1]

T tokens, C choices a token, P = T C pairs, E experts, S slots a rank.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from baton.kernels.cpu import operators
from baton.kernels.experts import expert_slots_cpu as cpu
from baton.kernels.experts.routing import Routed, routed_to

HASH_FACTOR = 0x9E3779B1
"""2^32 divided by the golden ratio, made odd."""


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class ExpertSlots:
    """The placement of a layer's experts, as seen by one rank. Moving experts updates it."""

    starts: Tensor
    """[E + 1] int32"""
    slots: Tensor
    """[ranks S] int32, by expert"""
    first: int
    """This rank's first slot."""
    count: int
    """S"""
    loads: Tensor
    """[E] int64: pairs that were routed to each expert, added up over passes."""

    def add_loads(self, routed: Routed) -> None:
        ends = torch.cat((routed.stops.new_zeros(1), routed.stops))
        self.loads.add_(ends.diff())


def own_pairs(routed: Routed, slots: ExpertSlots) -> Routed:
    """This rank's pairs by its own slots; other ranks' pairs come last, with slot S. Adds to the
    loads."""
    if routed.experts.dim() != 2 or routed.stops.shape != slots.loads.shape:
        raise ValueError(f"shapes do not fit: {routed.stops.shape=} {slots.loads.shape=}")
    if operators.runs(routed.shares):
        return replace(Routed(*cpu.own_pairs(routed, slots)), is_partial=True)
    slots.add_loads(routed)
    own = slot_of_pairs(routed.experts, routed.shares, slots) - slots.first
    own = torch.where((own >= 0) & (own < slots.count), own, slots.count)
    return replace(routed_to(own, routed.shares, slots.count), is_partial=True)


def slot_of_pairs(experts: Tensor, shares: Tensor, slots: ExpertSlots) -> Tensor:
    """The definition: experts and shares [T, C] -> slots [T, C] int32, of all ranks."""
    expert = experts.long()
    start, stop = slots.starts[expert].long(), slots.starts[expert + 1].long()
    bits = shares.contiguous().view(torch.int32).long() & 0xFFFFFFFF
    hashed = ((bits * HASH_FACTOR) & 0xFFFFFFFF) >> 16
    return slots.slots[start + (hashed * (stop - start) >> 16)]
