"""Token counts of some rows, on the device, updated with each sampled token.

    entry       0  1  2 | 3  4  5 | 6  7          one more per row with each draw
    row         0  0  0 | 1  1  1 | 0  1
    token       5  8  2 | 5  7  9 | 8  3          8 again: all its entries in the row are updated
    in output   0  2  0 | 1  0  0 | 2  1

Duplicate entries do no harm, because all entries of a token in a row have the same count.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from baton.engine.sampling.token_counts import TokenCounts
from baton.kernels.gpu.upload import uploaded
from baton.kernels.sampling.token_penalties import Occurrences

ROOM = 64
"""Number of draws for which memory is allocated at first."""


@dataclass(slots=True, eq=False)
class SeenTokens:
    """Entries of n rows. All but `rows` have shape [room], of which the first `num_entries` are in
    use."""

    rows: Tensor  # [n] int64, of the batch
    places: Tensor  # int64, index into `rows`
    tokens: Tensor  # int64
    counts: Tensor  # int64, times in the output
    num_entries: int

    def occurrences(self) -> Occurrences:
        num = self.num_entries
        rows = self.rows.index_select(0, self.places[:num])
        return Occurrences(rows, self.tokens[:num], self.counts[:num])

    def add(self, drawn: Tensor) -> None:
        """Add the token that each row has drawn, [n]. Does not wait for the device."""
        before, after = self.num_entries, self.num_entries + len(drawn)
        if after > len(self.tokens):
            self._make_room(after)
        places, counts = self.places[:before], self.counts[:before]
        is_same = (self.tokens[:before] == drawn.index_select(0, places)).long()
        counts += is_same
        times = torch.ones_like(drawn).scatter_reduce_(0, places, counts * is_same, "amax")
        self.places[before:after] = torch.arange(len(drawn), device=drawn.device)
        self.tokens[before:after] = drawn
        self.counts[before:after] = times
        self.num_entries = after

    def _make_room(self, num_entries: int) -> None:
        more = self.tokens.new_zeros(2 * num_entries - len(self.tokens))
        self.places = torch.cat((self.places, more))
        self.tokens = torch.cat((self.tokens, more))
        self.counts = torch.cat((self.counts, more))


def seen_tokens(
    rows: Sequence[int], counts: Sequence[TokenCounts], device: torch.device
) -> SeenTokens:
    """The seen tokens of `rows`, from the host's counts."""
    lens = [len(each.tokens) for each in counts]
    num = sum(lens)
    places, tokens, times = torch.zeros(3, num + ROOM * len(rows), dtype=torch.int64)
    whose = torch.arange(len(rows)).repeat_interleave(torch.tensor(lens), output_size=num)
    places[:num] = whose
    for whole, parts in ((tokens, [c.tokens for c in counts]), (times, [c.counts for c in counts])):
        words = bytearray().join(parts)
        if words:
            whole[:num] = torch.frombuffer(words, dtype=torch.int64)
    return SeenTokens(
        rows=uploaded(torch.tensor(rows), device),
        places=uploaded(places, device),
        tokens=uploaded(tokens, device),
        counts=uploaded(times, device),
        num_entries=num,
    )
