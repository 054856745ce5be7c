"""Context parallelism: ranks share a pass's tokens, and each keeps all KV.

    in each layer   write the KV of own tokens | all-gather the blocks written | attend to all
    at the end      all-gather the outputs, and tapped hidden states

Every rank has the model (with tensor ranks, the same share) and a replica of the cache with the
whole context, so attention is unchanged. Passes with few tokens are computed by all ranks alike,
with only a barrier at their end, so that a slow rank does not overwrite what the lead writes into
the replicas afterwards.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from baton.engine.batch.batch import Chunk, OnLayer, ignore_layer, make_batch
from baton.engine.batch.token_shares import Shares, num_outputs, output_rows, share_tokens
from baton.engine.mesh.ranks import Ranks
from baton.engine.passes.runner import ModelRunner


class KvExchange:
    """The exchange of one pass: all-gathers the blocks written in each layer."""

    def __init__(
        self, ranks: Ranks, blocks_by_rank: Sequence[Sequence[int]], device: torch.device
    ) -> None:
        most = max(map(len, blocks_by_rank))
        own = blocks_by_rank[ranks.rank]
        padded = [*own, *[own[-1]] * (most - len(own))]  # equal sizes on all ranks
        self._ranks = ranks
        self._own = torch.tensor(padded, device=device)
        self._others = [
            (rank, torch.tensor(blocks, device=device))
            for rank, blocks in enumerate(blocks_by_rank)
            if rank != ranks.rank
        ]

    def __call__(self, blocks: Tensor) -> None:
        """`blocks` are those of a layer."""
        found = self._ranks.all_gather(blocks.index_select(0, self._own))
        for rank, theirs in self._others:
            blocks.index_copy_(0, theirs, found[rank][: len(theirs)])


class ContextRunner(ModelRunner):
    """The runner of a rank with others along the context axis."""

    needs_others_to_tap = True

    def forward(self, chunks: Sequence[Chunk], on_layer: OnLayer = ignore_layer) -> Tensor:
        ranks = self.groups.context
        shares = share_tokens(chunks, ranks.size, self.cache.layout.block_size)
        if shares is not None:
            with torch.inference_mode():
                hidden = self._forward_share(chunks, shares, on_layer)
                if self._taps is not None and self._taps.is_on:
                    self._taps.found = [self._gathered(self._taps.features, chunks, shares)]
                return self._gathered(hidden, chunks, shares)
        hidden = super().forward(chunks, on_layer)
        ranks.all_gather(torch.zeros(1, device=self.cache.device))
        return hidden

    def _forward_share(self, chunks: Sequence[Chunk], shares: Shares, on_layer: OnLayer) -> Tensor:
        """The outputs of this rank's tokens."""
        cache, ranks = self.cache, self.groups.context
        block_size = cache.layout.block_size
        blocks = [
            [block for piece in share for block in piece.blocks_of(chunks, block_size)]
            for share in shares
        ]
        own = [piece.of(chunks) for piece in shares[ranks.rank]]
        batch = make_batch(own, block_size, cache.device)
        exchange = KvExchange(ranks, blocks, cache.device)
        batch = replace(batch, sequences=replace(batch.sequences, on_written=exchange))
        if cache.staging is not None:
            on_layer = cache.staging.marking(on_layer)
        hidden: Tensor = self.model(batch, self._layers, on_layer, self._taps)
        return hidden

    def _gathered(self, hidden: Tensor, chunks: Sequence[Chunk], shares: Shares) -> Tensor:
        """The outputs of all ranks, in the order of the chunks."""
        most = max(num_outputs(chunks, share) for share in shares)
        padded = hidden.new_zeros(max(most, 1), hidden.shape[1])
        padded[: len(hidden)] = hidden
        found = torch.cat(self.groups.context.all_gather(padded))
        rows = output_rows(chunks, shares, len(padded))
        return found.index_select(0, torch.tensor(rows, dtype=torch.int64, device=found.device))
