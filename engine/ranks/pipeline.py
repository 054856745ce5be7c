"""Passes of a pipeline stage: activations come from the previous stage and go to the next.

    lead, stage 0    embed a, layers, send | b ... |               wait for notices, outputs
    stage 1                     receive a, layers, send | b ... | notice
    the last                              receive a, layers, norm | b ... | outputs

Every rank sends to the rank with the same coordinates in the next stage. Once the KV of its layers
is written for all micro-batches, a stage notifies the lead; the last stage sends the outputs, if
there are any; and then each sends the tapped hidden states of its layers. Logits are computed where
the head is: at once for a pass that only decodes, because they are requested next; otherwise for
hidden states that the lead sends back.

Activations are sent as [2, T, D]: x and the residual stream. Sends are asynchronous, and waited for
only after `MAX_POSTED` further ones, so a stage continues at once.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

import torch
from torch import Tensor

from baton.engine.batch.batch import Batch, Chunk, OnLayer, ignore_layer, make_batch
from baton.engine.batch.micro_batches import micro_batches
from baton.engine.checkpoint.load import LoadedModel
from baton.engine.memory.kv_cache import KvCache
from baton.engine.mesh.ranks import RankGroup, Sent
from baton.engine.models.skeleton.taps import AuxCapture, AuxHiddenStates
from baton.engine.passes.runner import ModelRunner

MAX_POSTED = 32
"""The most unfinished sends, each of a micro-batch."""
PIECES_PER_STAGE = 4
"""Micro-batches of a large pass: with as many as there are stages, of two of them a third of the
time is lost to filling and emptying; with four times as many, a ninth."""
LEAD = 0
"""The first stage."""


class StageRunner(ModelRunner):
    """The runner of a rank with some of the layers."""

    needs_others_to_tap = True

    def __init__(
        self, loaded: LoadedModel, cache: KvCache, taps: AuxHiddenStates | None = None
    ) -> None:
        super().__init__(loaded, cache, taps)
        ranks, place = loaded.groups.pipeline, loaded.groups.place
        assert isinstance(ranks, RankGroup), "one stage is no pipeline"
        self._ranks = ranks
        self._stages = loaded.stages
        self._least_tokens = cache.limits.micro_batch_tokens
        self._dtype: torch.dtype = getattr(torch, loaded.info.dtype)
        self._is_first = ranks.rank == LEAD
        self._is_last = ranks.rank == ranks.size - 1
        self._has_lead = (place.tensor, place.context) == (0, 0)
        """Whether the lead has the same coordinates, apart from the stage."""
        self._posted: deque[Sent] = deque()
        self._made: tuple[Tensor, Tensor] | None = None
        """The outputs of the last pass, and their logits if it only decoded."""

    @torch.inference_mode()
    def forward(self, chunks: Sequence[Chunk], on_layer: OnLayer = ignore_layer) -> Tensor:
        """The outputs [S, D], at the lead and on the last stage; undefined elsewhere.

        At the lead `on_layer` is called for all layers; for those of other stages, stage by stage.
        """
        tapped: list[list[Tensor]] = []
        outputs: list[Tensor] = []
        on_own, staging = on_layer, self.cache.staging
        if staging is not None and self._is_first:
            on_own = staging.marking(on_layer)
        pieces = micro_batches(
            chunks, most=PIECES_PER_STAGE * self._ranks.size, least_tokens=self._least_tokens
        )
        for number, piece in enumerate(pieces, start=1):
            batch = make_batch(piece, self.cache.layout.block_size, self.cache.device)
            given = on_own if number == len(pieces) else ignore_layer
            outputs.append(self._through(batch, given))
            if self._taps is not None and self.tapped:
                tapped.append(self._taps.found)
        hidden = torch.cat(outputs)
        found = [torch.cat(of_pieces) for of_pieces in zip(*tapped, strict=True)]
        if self._has_lead and self._is_first:
            hidden = self._room(sum(chunk.num_outputs for chunk in chunks), self.model.width)
            self._receive_notices(hidden, found, on_layer)
        elif self._has_lead:
            self._notify_lead(hidden, found)
        self._made = (hidden, self.logits(hidden)) if only_decodes(chunks) else None
        return hidden

    def made_of(self, hidden: Tensor) -> Tensor | None:
        """The logits for the result of the last pass, if they have been computed."""
        return self._made[1] if self._made is not None and self._made[0] is hidden else None

    @torch.inference_mode()
    def logits(self, hidden: Tensor) -> Tensor:
        """The logits of hidden states that the lead sent, at the lead and on the last stage."""
        if self._is_last:
            logits = self.model.logits(hidden)
            if self._has_lead:
                self._post(logits, LEAD)
            return logits
        if not (self._is_first and self._has_lead):
            return hidden
        logits = hidden.new_empty(len(hidden), self.info.num_logits, dtype=torch.float32)
        return self._ranks.receive_(logits, self._ranks.size - 1)

    def _through(self, batch: Batch, on_layer: OnLayer) -> Tensor:
        """Run the batch through the layers of this stage; returns the last stage's output."""
        model, num_tokens = self.model, len(batch.tokens)
        model.adapters.rows = batch.adapters
        x, residual = None, None
        if self._is_first:
            x = model.embedded(batch)
        else:
            x, residual = self._ranks.receive_(
                self._room(2, num_tokens, model.width), self._ranks.rank - 1
            )
        taps = self._taps
        tapping = AuxCapture(taps, batch.output_rows) if taps is not None and self.tapped else None
        wanted = batch.output_rows if self._is_last else None
        x, residual = model.through(
            x, residual, batch.sequences, self._layers, on_layer, tapping, wanted
        )
        if self._is_last:
            return model.outputs(x, residual)
        self._post(torch.stack((x, residual)), self._ranks.rank + 1)
        return x[:0]

    def _notify_lead(self, hidden: Tensor, tapped: list[Tensor]) -> None:
        """Notify the lead once the KV of all layers is written."""
        self._settle()
        self._post(hidden if self._is_last and len(hidden) else _word(), LEAD)
        if tapped and len(tapped[0]):
            self._post(torch.cat(tapped, dim=-1), LEAD)

    def _receive_notices(self, hidden: Tensor, tapped: list[Tensor], on_layer: OnLayer) -> None:
        """Receive the notices of the other stages, one by one; the last stage's fills `hidden`, and
        each adds to `tapped`."""
        for stage, layers in enumerate(self._stages[1:], start=1):
            is_last = stage == self._ranks.size - 1
            self._ranks.receive_(hidden if is_last and len(hidden) else _word(), stage)
            if num_tapped := sum(layer in layers for layer in self.tapped):
                room = self._room(len(hidden), num_tapped * hidden.shape[1])
                tapped.append(self._ranks.receive_(room, stage) if len(hidden) else room)
            self._settle()
            for layer in layers:
                on_layer(layer)
        if self._taps is not None and self.tapped:
            self._taps.found = tapped

    def _settle(self) -> None:
        """Wait for the GPU."""
        if self.cache.device.type == "cuda":
            torch.cuda.current_stream().synchronize()

    def _room(self, *shape: int) -> Tensor:
        return torch.empty(shape, dtype=self._dtype, device=self.cache.device)

    def _post(self, x: Tensor, to: int) -> None:
        self._posted.append(self._ranks.send(x, to))
        while len(self._posted) > MAX_POSTED:
            self._posted.popleft().wait()


def only_decodes(chunks: Sequence[Chunk]) -> bool:
    return all(len(chunk.tokens) == chunk.num_outputs == 1 for chunk in chunks)


def _word() -> Tensor:
    return torch.zeros(1, dtype=torch.int64)
