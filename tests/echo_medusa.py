"""Medusa heads for `EchoRunner`: right as long as what is drawn is what comes."""

from __future__ import annotations

from tests.echo_head import next_digests
from torch import Tensor

from baton.engine.models.heads.medusa import MedusaHeads
from baton.engine.passes.echo import EchoRunner


class EchoMedusa(MedusaHeads):
    def __init__(self, runner: EchoRunner, num_heads: int) -> None:
        super().__init__(
            1, runner.info.vocab_size, num_heads=num_heads, num_layers=0, has_own_heads=False
        )
        self._runner = runner

    def logits(self, hidden: Tensor, number: int) -> Tensor:
        for _ in range(number + 1):
            hidden = next_digests(self._runner, hidden)
        return self._runner.logits(hidden)
