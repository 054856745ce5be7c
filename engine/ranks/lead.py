"""Passes of several ranks: the lead sends orders, the others follow.

    lead        send pass     | its share of the pass | send head, hidden | its share of the logits
    others      receive order | theirs                | receive order     | theirs

A captured pass includes the head, without an order of its own. While the same requests decode, each
further order holds only what is new (`baton.engine.ranks.decoding_turns`). All-reduces keep the
ranks within a layer of each other. A lost rank makes the lead's next call fail, and the lead's end
makes the others' `follow` return.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from baton.engine.batch.batch import Chunk, OnLayer, ignore_layer
from baton.engine.batch.decoding import Decoding
from baton.engine.mesh.orders import (
    BeginDecoding,
    Expect,
    Head,
    Join,
    MoveExperts,
    Pass,
    SendAuxHiddenStates,
    Stop,
    Tally,
    Turn,
    expect_words,
    head_words,
    join_words,
    pass_words,
    read_order,
    stop_words,
    tap_words,
)
from baton.engine.mesh.ranks import RankGroup
from baton.engine.passes.runner import ModelRunner
from baton.engine.ranks.decoding_turns import AnnouncedDecoding, ReceivedPasses
from baton.engine.ranks.pipeline import StageRunner
from baton.engine.ranks.sharded_cache import ShardedCache
from baton.engine.sharding.expert_balancer import ExpertBalancer, added_up
from baton.engine.sharding.held_experts import HeldExperts
from baton.kernels.products.vocabulary_screen import ScreenedTokens
from baton.kernels.sampling.draw_token import Draws


class LeadRunner:
    """A `Runner` whose cache is that of all ranks."""

    def __init__(self, own: ModelRunner, cache: ShardedCache) -> None:
        ranks = own.groups.engine
        assert isinstance(ranks, RankGroup), "there is nobody to lead"
        self.info = own.info
        self.cache = cache
        self.balancer: ExpertBalancer | None = None
        self._own = own
        self._ranks = ranks
        self._tapped: tuple[int, ...] = ()
        """Layers that the other ranks tap now."""
        self._announced: AnnouncedDecoding | None = None
        """The last announced decoding."""

    @property
    def own(self) -> ModelRunner:
        """The runner of the lead's own share."""
        return self._own

    @property
    def num_ranks(self) -> int:
        return self._ranks.size

    def forward(self, chunks: Sequence[Chunk], on_layer: OnLayer = ignore_layer) -> Tensor:
        self._send_taps()
        if self.balancer is not None:
            self.balancer.turn()
        self.cache.settle()
        self._send_pass(chunks)
        return self._own.forward(chunks, on_layer)

    def _send_pass(self, chunks: Sequence[Chunk]) -> None:
        announced = self._announced
        if announced is not None and announced.is_before(chunks):
            announced.announce_next()
        elif isinstance(chunks, Decoding):
            self._announced = AnnouncedDecoding(chunks, self._ranks)
        else:
            self._ranks.send_order(pass_words(chunks))

    def _send_taps(self) -> None:
        """Send the tapped layers to the others if they have changed."""
        if self._own.needs_others_to_tap and self._tapped != self._own.tapped:
            self._tapped = self._own.tapped
            self._ranks.send_order(tap_words(self._tapped))

    def logits(self, hidden: Tensor) -> Tensor:
        graphs = self._own.graphs
        if graphs is not None and (of_graph := graphs.logits_of(hidden)) is not None:
            return of_graph  # the others have computed their share in the same graph
        if self._own.groups.mesh.has_whole_models:
            return self._own.logits(hidden)
        if isinstance(self._own, StageRunner) and (made := self._own.made_of(hidden)) is not None:
            return made
        self._ranks.send_order(head_words(hidden.shape))
        return self._own.logits(self._ranks.broadcast_(hidden.contiguous()))

    def screened_tokens(self, hidden: Tensor, draws: Draws | None = None) -> ScreenedTokens | None:
        return self._own.screened_tokens(hidden, draws)

    def expect(self, max_tokens: int) -> None:
        """Announce a pass with other engines, none of which has more than `max_tokens`."""
        self._ranks.send_order(expect_words(max_tokens))
        self._own.expect(max_tokens)

    def join(self) -> None:
        """Compute experts for a pass of other engines."""
        if self.balancer is not None:
            self.balancer.turn()
        self._ranks.send_order(join_words())
        self._own.join()

    def close(self) -> None:
        """Release the other ranks."""
        try:
            self._ranks.send_order(stop_words())
        finally:
            self.cache.close_lines()


def follow(own: ModelRunner) -> None:
    """Follow the lead's orders until `Stop`. Raises RuntimeError once a rank is gone."""
    ranks = own.groups.engine
    assert isinstance(ranks, RankGroup), "there is no lead to follow"
    dtype: torch.dtype = getattr(torch, own.info.dtype)
    passes = ReceivedPasses(ranks, own.cache.device)
    while True:
        match read_order(ranks.receive_order()):
            case Pass() | BeginDecoding() | Turn() as order:
                own.forward(passes.chunks_of(order))
            case Head(shape):
                hidden = torch.empty(shape, dtype=dtype, device=own.cache.device)
                ranks.broadcast_(hidden)
                if own.groups.place.context == 0:  # beside the lead's share of the head
                    own.logits(hidden)
            case Expect(max_tokens):
                own.expect(max_tokens)
            case Join():
                own.join()
            case Tally() | MoveExperts() as of_experts:
                assert own.held is not None, "the lead has found experts to look at"
                _handle(own.held, of_experts, ranks)
            case SendAuxHiddenStates(layers):
                own.tap(layers)
            case Stop():
                return


def _handle(held: HeldExperts, order: Tally | MoveExperts, ranks: RankGroup) -> None:
    match order:
        case Tally():
            added_up(held.tally(), ranks)
        case MoveExperts(layer, experts):
            held.move(layer, experts)
