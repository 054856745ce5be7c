"""A runner that echoes, and sleeps until its pass has taken as long as the step times say."""

from __future__ import annotations

import time
from collections.abc import Sequence

from torch import Tensor

from baton.core.step_times import StepTimes, StepWork, prompt_work
from baton.engine.batch.batch import Chunk, OnLayer, ignore_layer
from baton.engine.models.config.info import ModelInfo
from baton.engine.passes.echo import EchoRunner


class PacedRunner(EchoRunner):
    def __init__(
        self, info: ModelInfo, *, num_blocks: int, block_size: int = 16, times: StepTimes
    ) -> None:
        super().__init__(info, num_blocks=num_blocks, block_size=block_size, is_verifying=False)
        self.factor = 1.0
        """The factor by which passes take longer from now on."""
        self._times = times

    def forward(self, chunks: Sequence[Chunk], on_layer: OnLayer = ignore_layer) -> Tensor:
        seconds = self.factor * self._times.predict_s(_work_of(chunks))
        ends_at = time.monotonic() + seconds
        hidden = super().forward(chunks, on_layer)
        time.sleep(max(ends_at - time.monotonic(), 0.0))
        return hidden


def _work_of(chunks: Sequence[Chunk]) -> StepWork:
    num_tokens = num_pairs = num_context = 0
    for chunk in chunks:
        num_tokens += len(chunk.tokens)
        if len(chunk.tokens) == 1:
            num_context += chunk.start
        else:
            num_pairs += prompt_work(len(chunk.tokens), chunk.start).num_pairs
    return StepWork(num_tokens, num_pairs, num_context, len(chunks))
