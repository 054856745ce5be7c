"""A head for `EchoRunner`: it knows what comes, and finds any pair that is not where it must be.

    hidden[t]  the digest of the tokens up to t
    out[t]     the same with token t + 1, so it is hidden[t + 1]

In its KV the place of a pair holds its `out`. So what is before a pair must be its own `hidden`.
Digests are int64; as features they are float32 [2] of the same bits.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from baton.core.kv_layout import OUTPUTS, DraftFeatures, KvLayout
from baton.engine.models.heads.draft_head import Mask
from baton.engine.passes.echo import MULTIPLIER, EchoRunner
from baton.kernels.attention.layer_kv import LayerCache, LayerKv
from baton.kernels.paging.sequences import Sequences

MULTIPLIER_OF_INT64 = MULTIPLIER - 2**64 if MULTIPLIER >= 2**63 else MULTIPLIER
"""As int64 has it."""
MASKED = -(2**63)
"""Stands where a mask has a hidden state: no digest is that, but once in 2^64."""


FEATURES = DraftFeatures(kind=OUTPUTS, width=2, dtype="float32")


class EchoHead:
    width = 2
    taps: tuple[int, ...] = ()
    features = OUTPUTS

    def __init__(self, runner: EchoRunner, *, is_parallel: bool = False) -> None:
        """`is_parallel`: masks go on from the row before them, and are no digest in its KV."""
        self._runner = runner
        self._is_parallel = is_parallel
        self.num_pairs = 0
        """Computed so far."""
        self.num_first = 0
        """Of these, the ones that have nothing before them, or what does not belong there."""

    def layout(self, of_model: KvLayout) -> KvLayout:
        return of_model

    def joined(self, features: Tensor) -> Tensor:
        return features.clone().view(torch.float32)

    def __call__(
        self,
        hidden: Tensor,
        next_tokens: Tensor,
        sequences: Sequences,
        caches: Sequence[LayerCache],
    ) -> Tensor:
        [cache, *_] = caches
        assert isinstance(cache, LayerKv) and isinstance(cache.arena, Tensor)
        cells = cache.arena.view(torch.int64)[:, 0, 0, :, 0]  # [blocks, S]
        hidden = hidden.view(torch.int64)
        out = hidden[:, 0] * MULTIPLIER_OF_INT64 + next_tokens + 1  # as the runner's, mod 2^64
        starts, size = sequences.query_starts.tolist(), sequences.block_size
        for request, table in enumerate(sequences.block_tables.tolist()):
            rows = range(starts[request], starts[request + 1])
            for row in rows:
                place = int(sequences.positions[row])
                is_mask = self._is_parallel and int(hidden[row]) == MASKED
                if is_mask:
                    out[row] = next_digests(self._runner, out[row - 1].view(1, 1)).squeeze()
                elif place:
                    before = cells[table[(place - 1) // size], (place - 1) % size]
                    self.num_first += int(before != hidden[row, 0])
                else:
                    self.num_first += 1
                cells[table[place // size], place % size] = MASKED if is_mask else out[row]
                self.num_pairs += 1
        return out.unsqueeze(1).view(torch.float32)

    def logits(self, out: Tensor) -> Tensor:
        return self._runner.logits(out.view(torch.int64))

    def mask(self) -> Mask | None:
        if not self._is_parallel:
            return None
        return Mask(0, torch.tensor([[MASKED]]).view(torch.float32))


def next_digests(runner: EchoRunner, digests: Tensor) -> Tensor:
    """[S, 1] The digests next_digests the tokens that come."""
    return digests * MULTIPLIER_OF_INT64 + runner.logits(digests).argmax(-1, keepdim=True) + 1
