"""Sends tokens to the ranks of their experts, and the results back (all-to-all).

    home     pairs (token, choice) by slot      | of rank 0 | rank 1 | rank 2 |
             how many of each slot   --all to all-->   how many each rank sends, for each slot here
             rows [P, D]             --all to all-->   rows of all ranks
    holder                                             each row through the expert of its slot
             outs [P, D]             <--all to all--   in the order they came
    home     out[t] = sum over c of  share[t, c] * out of (t, c)         c = 0, 1, ..

Where all engines have few tokens, as in decoding, every rank sends every other the largest possible
number of rows, each with its slot: one message each way, of known sizes, so that the host need not
wait for the device.

A slot is the place of one expert on one rank; slots are numbered from rank to rank. No token is
ever dropped, however many choose one expert. A token's result does not depend, to the bit, on where
its experts are, since it is summed at home in the order of its choices.

Tensor ranks have the same tokens, so each sends a consecutive part of them; the following
all-reduce adds the rest. A rank without tokens takes part, too, since the others wait for it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from baton.engine.mesh.ranks import RankGroup
from baton.engine.mesh.split import Share

MAX_FIXED_TOKENS = {"cpu": 8, "cuda": 64}
"""The most tokens per engine for fixed-size messages. Above, empty rows cost more than an
additional message of counts, for which the host must wait for the GPU."""
SLOT_BYTES = 4
"""Bytes of a row's slot number."""
Compute = Callable[[Tensor, Tensor], Tensor]
"""rows [P, D], slots of this rank [P] -> [P, D]; empty rows have the slot after the last."""


@dataclass(slots=True)
class ExpertExchange:
    ranks: RankGroup
    """The ranks that experts are spread over."""
    share: Share
    """This rank's share of the tokens that its tensor group has in common."""
    max_tokens: int
    """The most tokens of any engine in the coming pass; set before it."""

    def __call__(
        self,
        x: Tensor,
        slots: Tensor,
        num_slots: int,
        compute: Compute,
        scales: Tensor | None = None,
    ) -> Tensor:
        """x [T, D] of this rank alone, slots [T, C] among `num_slots` a rank -> outs [T, C, D]

        What is sent of a token for a choice is multiplied by one of the scales [T, C] before.
        """
        ranked, pairs = slots.flatten().long().sort(stable=True)
        rows = x[pairs // slots.shape[1]]
        if scales is not None:
            rows = (rows * scales.flatten()[pairs, None]).to(x.dtype)
        if self.max_tokens > MAX_FIXED_TOKENS[x.device.type]:
            outs = self._counted(rows, ranked, num_slots, compute)
        else:
            room = fixed_room(self.max_tokens, self.share.size, slots.shape[1], num_slots)
            outs = self._fixed(rows, ranked, num_slots, room, compute)
        by_pair = torch.empty_like(outs)
        by_pair[pairs] = outs
        return by_pair.view(*slots.shape, x.shape[1])

    def _counted(self, rows: Tensor, ranked: Tensor, num_slots: int, compute: Compute) -> Tensor:
        """rows [P, D] by slot -> [P, D]"""
        num_ranks = self.ranks.size
        asked = torch.bincount(ranked, minlength=num_ranks * num_slots)
        every = [num_slots] * num_ranks
        wanted = self.ranks.all_to_all(asked, every, every)
        sent, received = torch.stack((asked, wanted)).view(2, num_ranks, -1).sum(2).tolist()
        found = self.ranks.all_to_all(rows, sent, received)
        own = torch.arange(num_slots, device=rows.device).repeat(num_ranks)
        outs = compute(found, own.repeat_interleave(wanted)) if len(found) else found
        return self.ranks.all_to_all(outs, received, sent)

    def _fixed(
        self, rows: Tensor, ranked: Tensor, num_slots: int, room: int, compute: Compute
    ) -> Tensor:
        """`_counted` with the same room for each rank, so that no rank waits for counts."""
        num_ranks, num_bytes = self.ranks.size, rows.shape[1] * rows.itemsize
        to = ranked // num_slots
        every = torch.arange(num_ranks, device=rows.device)
        place = torch.arange(len(to), device=rows.device) - torch.searchsorted(to, every)[to]
        place += to * room
        laid = rows.new_zeros(num_ranks * room, rows.shape[1])
        laid[place] = rows
        own = torch.full((len(laid), 1), num_slots, dtype=torch.int32, device=rows.device)
        own[place, 0] = (ranked % num_slots).to(torch.int32)
        equal = [room] * num_ranks
        message = torch.cat((laid.view(torch.uint8), own.view(torch.uint8)), dim=1)
        heard = self.ranks.all_to_all(message, equal, equal)
        found = heard[:, :num_bytes].contiguous().view(rows.dtype)
        slots = heard[:, num_bytes:].contiguous().view(torch.int32).flatten()
        return self.ranks.all_to_all(compute(found, slots), equal, equal)[place]


def fixed_room(max_tokens: int, num_homes: int, num_choices: int, num_slots: int) -> int:
    """The most rows from one rank to another, where `num_homes` ranks share an engine's tokens; a
    token never chooses an expert twice."""
    return -(-max_tokens // num_homes) * min(num_choices, num_slots)


def weighted(outs: Tensor, shares: Tensor) -> Tensor:
    """outs [T, C, D], shares [T, C] float32 -> float32 [T, D], added choice by choice."""
    y = torch.zeros(len(outs), outs.shape[2], device=outs.device)
    for out, share in zip(outs.unbind(1), shares.unbind(1), strict=True):
        y += out.float() * share[:, None]
    return y
