"""Passes that several ranks compute together: the lead tells, the others follow.

    lead        tell(pass) | its share of the pass | tell(head), hidden | its share of the logits
    others      hear       | theirs                | hear               | theirs

Layers meet in all-reduces, so no rank runs ahead of another by more than a layer. A rank that is
gone makes the lead's next call fail, and the lead's end makes the others' `follow` return.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from baton.engine.batch import Chunk, OnLayer, ignore_layer
from baton.engine.parallel.orders import (
    Head,
    Pass,
    Stop,
    head_words,
    pass_words,
    read_order,
    stop_words,
)
from baton.engine.parallel.ranks import RankGroup
from baton.engine.parallel.sharded_cache import ShardedCache
from baton.engine.runner import ModelRunner


class LeadRunner:
    """A `Runner` whose cache is that of all ranks."""

    def __init__(self, own: ModelRunner, cache: ShardedCache) -> None:
        everyone = own.groups.everyone
        assert isinstance(everyone, RankGroup), "there is nobody to lead"
        self.info = own.info
        self.cache = cache
        self._own = own
        self._ranks = everyone

    @property
    def num_ranks(self) -> int:
        return self._ranks.size

    def forward(self, chunks: Sequence[Chunk], on_layer: OnLayer = ignore_layer) -> Tensor:
        self._ranks.tell(pass_words(chunks))
        return self._own.forward(chunks, on_layer)

    def logits(self, hidden: Tensor) -> Tensor:
        self._ranks.tell(head_words(hidden.shape))
        return self._own.logits(self._ranks.broadcast_(hidden.contiguous()))

    def close(self) -> None:
        """Let the other ranks go."""
        self._ranks.tell(stop_words())


def follow(own: ModelRunner) -> None:
    """Do what the lead tells, until it says that this is all.

    Raises RuntimeError once a rank of the group is gone.
    """
    ranks = own.groups.everyone
    assert isinstance(ranks, RankGroup), "there is no lead to follow"
    dtype: torch.dtype = getattr(torch, own.info.dtype)
    while True:
        match read_order(ranks.hear()):
            case Pass(chunks):
                own.forward(chunks)
            case Head(shape):
                hidden = torch.empty(shape, dtype=dtype, device=own.cache.device)
                own.logits(ranks.broadcast_(hidden))
            case Stop():
                return
