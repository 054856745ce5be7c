"""Data parallelism with shared experts: a pass of one engine is a pass of all.

    engine 0   meet: pass   its layers, with those of 1 where experts are     logits, tokens
    engine 1   meet: idle   no tokens: its experts alone                      -
    engine 0   meet: idle   |
    engine 1   meet: idle   |  nobody computes: both sleep for a tick, or until a command comes

Before every pass the leads of the data places exchange their intent and number of tokens; an engine
without work joins with no tokens. Only passes are in lockstep, not steps: a step may have no pass,
or two. An engine ends when all are leaving. A lost lead makes the next exchange fail.
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
from baton.kernels.products.vocabulary_screen import ScreenedTokens
from baton.kernels.sampling.draw_token import Draws

TICK_S, MAX_TICK_S = 0.005, 0.05
"""Seconds between meetings of an idle engine, for which the others wait: right after a pass, and
after seconds without one."""
TICK_GROWTH = 0.05
"""Growth of the interval per idle meeting."""


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
        """Idle meetings since the last pass; equal in all engines."""

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

    def screened_tokens(self, hidden: Tensor, draws: Draws | None = None) -> ScreenedTokens | None:
        return self.own.screened_tokens(hidden, draws)

    def join_pass(self) -> bool:
        """Join the others' pass, if there is one. Blocks until all engines meet."""
        return self._join(self._meet(Intent.IDLE))

    def close(self) -> None:
        """Join the others' passes until they leave, too, then release the other ranks."""
        while (intents := self._meet(Intent.LEAVING)) != {Intent.LEAVING}:
            self._join(intents)
        if isinstance(self.own, LeadRunner):
            self.own.close()

    def _meet(self, intent: Intent, num_tokens: int = 0) -> set[Intent]:
        """The intents of all engines, after the runner was told the largest number of tokens."""
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
