"""Runs forward passes of a model over the KV cache."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import ClassVar, Protocol

import torch
from torch import Tensor

from baton.engine.batch.batch import Chunk, OnLayer, ignore_layer, make_batch
from baton.engine.batch.static_batch import StaticBatch
from baton.engine.blocks.block_bytes import EngineCache
from baton.engine.checkpoint.load import LoadedModel
from baton.engine.layers.moe import MoeFeedForward
from baton.engine.memory.kv_cache import KvCache
from baton.engine.models.config.info import ModelInfo
from baton.engine.models.skeleton.taps import AuxHiddenStates
from baton.engine.passes.graph_start import PassGraphs, capture_passes
from baton.engine.passes.taped_model import record
from baton.engine.sharding.expert_balancer import ExpertBalancer
from baton.kernels.products.vocabulary_screen import ScreenedTokens, VocabularyScreen
from baton.kernels.sampling.draw_token import Draws


class Runner(Protocol):
    """Runs forward passes; `engine/passes/echo.py` has one without a model."""

    info: ModelInfo

    @property
    def cache(self) -> EngineCache: ...

    def forward(self, chunks: Sequence[Chunk], on_layer: OnLayer = ignore_layer) -> Tensor:
        """Compute all chunks, writing their KV into the cache.

        `on_layer` is called after each layer. On a GPU its KV is written once the work enqueued on
        the current stream so far is done.

        Returns the hidden states [S, D] of the tokens whose outputs the chunks want, in order:
        after the last norm, before the head. They are valid until the next pass is computed.
        """

    def logits(self, hidden: Tensor) -> Tensor:
        """Hidden states [S, D] -> float32 logits [S, V], which are valid until the next call."""

    def screened_tokens(self, hidden: Tensor, draws: Draws | None = None) -> ScreenedTokens | None:
        """The token of each row of `hidden` [S, D] if they can be found without `logits`, else
        None: the best ones or, for the rows of `draws`, those that these draw."""


class ModelRunner:
    """A loaded model and the cache it writes to, on one device.

    On a CPU passes are played from a recorded tape if it gives the same results as the model. On a
    GPU passes that decode, verify drafts or have short prompts are CUDA graphs.
    """

    needs_others_to_tap: ClassVar[bool] = False
    """Whether other ranks must send hidden states for the lead's taps."""

    def __init__(
        self, loaded: LoadedModel, cache: KvCache, taps: AuxHiddenStates | None = None
    ) -> None:
        """Record tapes or capture graphs for passes within the cache's limits. The cache must be
        empty. `taps` copy hidden states out of each pass."""
        layout = cache.layout
        of_model = loaded.own(loaded.info.layout(layout.block_size, layout.dtype))
        if replace(layout, features=None) != of_model:
            raise ValueError(f"the cache has the layout of another model: {layout}")
        if cache.dtype != loaded.info.dtype:
            raise ValueError(
                f"the cache is for a model in {cache.dtype}, but this model is in "
                f"{loaded.info.dtype}"
            )
        self.info = loaded.info
        self.groups = loaded.groups
        """The groups of the ranks that share the model."""
        self.held = loaded.held
        self.screen: VocabularyScreen | None = None
        """Finds tokens without all logits, if this is the runner of an engine."""
        self.balancer: ExpertBalancer | None = None
        """The balancer of experts, if this rank is an engine of its own."""
        self.cache = cache
        self._layers = cache.layers
        batch = StaticBatch(
            cache.limits,
            layout.block_size,
            cache.device,
            has_adapters=loaded.model.adapters.exist,
        )
        mesh, engine = self.groups.mesh, self.groups.engine
        # A tape cannot hold messages between ranks; a graph can, if all ranks replay it together.
        self.taped = record(loaded, cache, batch, taps) if mesh.has_whole_models else None
        captured = (
            capture_passes(loaded.model, cache, batch, taps, engine)
            if mesh.has_steady_passes
            else PassGraphs()
        )
        self.graphs, self.mixed = captured.decode, captured.mixed
        self._taps = taps
        self.model = loaded.model
        """The model itself. Its passes may be played from the tape or the graphs instead."""
        parts = loaded.model.modules()  # in the order of layers
        self._mixtures = [part for part in parts if isinstance(part, MoeFeedForward)]

    def forward(self, chunks: Sequence[Chunk], on_layer: OnLayer = ignore_layer) -> Tensor:
        if self.balancer is not None:
            self.balancer.turn()
        cache = self.cache
        if cache.staging is not None:
            on_layer = cache.staging.marking(on_layer)
        with torch.inference_mode():
            if self.taped is not None and self.taped.fits(chunks):
                return self.taped.forward(self.taped.batch.fill(chunks), on_layer)
            if self.graphs is not None and (size := self.graphs.size_for(chunks)):
                return self._after_all_layers(self.graphs.forward(chunks, size), on_layer)
            if self.mixed is not None and (num_tokens := self.mixed.size_for(chunks)):
                return self._after_all_layers(self.mixed.forward(chunks, num_tokens), on_layer)
            batch = make_batch(chunks, cache.layout.block_size, cache.device)
            hidden: Tensor = self.model(batch, self._layers, on_layer, self._taps)
        return hidden

    @property
    def tapped(self) -> tuple[int, ...]:
        """The layers whose inputs the next pass is to keep."""
        return self._taps.layers if self._taps is not None and self._taps.is_on else ()

    def tap(self, layers: Sequence[int]) -> None:
        """Keep the inputs of these layers for the lead, which has taps of its own."""
        self._taps = AuxHiddenStates(layers) if layers else None

    def join(self) -> None:
        """Take part in a pass of other engines, by computing with the experts on this rank."""
        if self.balancer is not None:
            self.balancer.turn()
        with torch.inference_mode():
            for mixture in self._mixtures:
                mixture.join()

    def expect(self, max_tokens: int) -> None:
        """Prepare for a pass with other engines in which each has at most `max_tokens` tokens."""
        for mixture in self._mixtures:
            mixture.experts.expect(max_tokens)

    def logits(self, hidden: Tensor) -> Tensor:
        with torch.inference_mode():
            if self.taped is not None and self.taped.takes(hidden):
                return self.taped.logits(hidden)
            made = None if self.graphs is None else self.graphs.logits_of(hidden)
            return self.model.logits(hidden) if made is None else made

    def screened_tokens(self, hidden: Tensor, draws: Draws | None = None) -> ScreenedTokens | None:
        return None if self.screen is None else self.screen.tokens(hidden, draws)

    def _after_all_layers(self, hidden: Tensor, on_layer: OnLayer) -> Tensor:
        """`hidden`, after calling `on_layer` for all layers: a graph cannot stop after each."""
        for layer in range(self.cache.layout.num_layers):
            on_layer(layer)
        return hidden
