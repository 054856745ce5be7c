"""Engines that share experts and nothing else: a pass of one is a pass of all.

    engine 0   meet: pass   its layers, with those of 1 where experts are     logits, tokens
    engine 1   meet: idle   no tokens: its experts alone                      -
    engine 0   meet: idle   |
    engine 1   meet: idle   |  nobody computes: both sleep for a tick, or until a command comes

Before every pass the leads of the data places meet and tell what they are about to do, and with how
many tokens; who has nothing to compute joins the others' with no tokens. Steps need not meet, only
passes: an engine may compute none, or two, in a step, as long as it joins a pass when it computes
nothing. It ends when all are about to leave. A lead that is gone fails the next meeting, or the
exchange it is missed in.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from enum import IntEnum

from torch import Tensor

from baton.engine.batch.batch import Chunk, OnLayer, ignore_layer
from baton.engine.mesh.ranks import RankGroup
from baton.engine.passes.runner import ModelRunner
from baton.engine.ranks.lead import LeadRunner

TICK_S, MAX_TICK_S = 0.005, 0.05
"""Seconds that an engine without work may stay away from the others, which wait for it: right after
a pass, and once nobody has computed for seconds."""
TICK_GROWTH = 0.05
"""Each time that they meet for nothing."""


class Intent(IntEnum):
    IDLE = 0
    PASS = 1
    LEAVING = 2


class LockstepRunner:
    """A `Runner` in step with those of the other data places."""

    def __init__(self, own: LeadRunner | ModelRunner, leads: RankGroup) -> None:
        self.info = own.info
        self.cache = own.cache
        self.own = own
        self._leads = leads
        self._num_met_in_vain = 0
        """Meetings for nothing since the last pass; the same in all engines."""

    @property
    def tick_s(self) -> float:
        return min(MAX_TICK_S, TICK_S * (1 + TICK_GROWTH * self._num_met_in_vain))

    @property
    def num_ranks(self) -> int:
        """The ranks of this engine."""
        return self.own.num_ranks if isinstance(self.own, LeadRunner) else 1

    def forward(self, chunks: Sequence[Chunk], on_layer: OnLayer = ignore_layer) -> Tensor:
        self._meet(Intent.PASS, sum(len(chunk.tokens) for chunk in chunks))
        return self.own.forward(chunks, on_layer)

    def logits(self, hidden: Tensor) -> Tensor:
        return self.own.logits(hidden)

    def join_pass(self) -> bool:
        """Join the others' pass, if anybody has one. Blocks until all have come."""
        return self._join(self._meet(Intent.IDLE))

    def close(self) -> None:
        """Join the others' passes until they leave as well, and let the other ranks go."""
        while (intents := self._meet(Intent.LEAVING)) != {Intent.LEAVING}:
            self._join(intents)
        if isinstance(self.own, LeadRunner):
            self.own.close()

    def _meet(self, intent: Intent, num_tokens: int = 0) -> set[Intent]:
        """The intents of all engines, once the runner is told how many tokens their passes have."""
        found = self._leads.gather(array("q", (intent, num_tokens)))
        intents = {Intent(of_engine) for of_engine, _ in found}
        if Intent.PASS in intents:
            self.own.expect(max(count for _, count in found))
            self._num_met_in_vain = 0
        else:
            self._num_met_in_vain += 1
        return intents

    def _join(self, intents: set[Intent]) -> bool:
        has_pass = Intent.PASS in intents
        if has_pass:
            self.own.join()
        return has_pass
