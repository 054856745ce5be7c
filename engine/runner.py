"""Runs forward passes of a model over the KV cache."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import torch
from torch import Tensor

from baton.engine.batch import Chunk, make_batch
from baton.engine.checkpoint.info import ModelInfo
from baton.engine.checkpoint.load import LoadedModel
from baton.engine.kv_cache import KvCache


class Runner(Protocol):
    """Runs forward passes; `engine/echo.py` has one without a model."""

    info: ModelInfo
    cache: KvCache

    def forward(self, chunks: Sequence[Chunk]) -> Tensor:
        """Compute all chunks, writing their KV into the cache.

        Returns the hidden states [S, D] of the tokens whose outputs the chunks want, in order:
        after the last norm, before the head.
        """

    def logits(self, hidden: Tensor) -> Tensor:
        """Hidden states [S, D] -> float32 logits [S, V]."""


class ModelRunner:
    """A loaded model and the cache it writes to, on one device."""

    def __init__(self, loaded: LoadedModel, cache: KvCache) -> None:
        expected = loaded.info.layout(cache.layout.block_size)
        if cache.layout != expected:
            raise ValueError(f"the cache is laid out for another model: {cache.layout}")
        self.info = loaded.info
        self.cache = cache
        self._model = loaded.model

    def forward(self, chunks: Sequence[Chunk]) -> Tensor:
        with torch.inference_mode():
            batch = make_batch(chunks, self.cache.layout, self.cache.device)
            hidden: Tensor = self._model(batch, self.cache.layers)
        return hidden

    def logits(self, hidden: Tensor) -> Tensor:
        with torch.inference_mode():
            return self._model.logits(hidden)
