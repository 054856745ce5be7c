"""Runs forward passes of a model over the KV cache."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import torch
from torch import Tensor

from baton.engine.batch import Chunk, OnLayer, ignore_layer, make_batch
from baton.engine.checkpoint.info import ModelInfo
from baton.engine.checkpoint.load import LoadedModel
from baton.engine.kv_cache import KvCache


class Runner(Protocol):
    """Runs forward passes; `engine/echo.py` has one without a model."""

    info: ModelInfo
    cache: KvCache

    def forward(self, chunks: Sequence[Chunk], on_layer: OnLayer = ignore_layer) -> Tensor:
        """Compute all chunks, writing their KV into the cache.

        On a GPU a layer is written when what it had to do so far is done on its current stream.

        Returns the hidden states [S, D] of the tokens whose outputs the chunks want, in order:
        after the last norm, before the head.
        """

    def logits(self, hidden: Tensor) -> Tensor:
        """Hidden states [S, D] -> float32 logits [S, V]."""


class ModelRunner:
    """A loaded model and the cache it writes to, on one device."""

    def __init__(self, loaded: LoadedModel, cache: KvCache) -> None:
        layout = cache.layout
        if layout != loaded.info.layout(layout.block_size, layout.dtype):
            raise ValueError(f"the cache is laid out for another model: {layout}")
        self.info = loaded.info
        self.cache = cache
        self._model = loaded.model

    def forward(self, chunks: Sequence[Chunk], on_layer: OnLayer = ignore_layer) -> Tensor:
        if self.cache.staging is not None:
            on_layer = self.cache.staging.marking(on_layer)
        with torch.inference_mode():
            cache = self.cache
            batch = make_batch(chunks, cache.layout, cache.device, dtype=self.info.dtype)
            hidden: Tensor = self._model(batch, cache.arenas, on_layer)
        return hidden

    def logits(self, hidden: Tensor) -> Tensor:
        with torch.inference_mode():
            return self._model.logits(hidden)
