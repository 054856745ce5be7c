"""A model's passes as two tapes, from the description of a pass to its outputs, and on to logits.

    StaticBatch --forward--> hidden [S, D] --logits--> [S, V] float32

A model is recorded when its cache is still empty. A part of it that computes with torch instead of
an operator would be missing from the tape, so other passes are played and computed, too: only if
all outputs and all KV are the same to the bit is the tape used.
"""

from __future__ import annotations

import ctypes
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from baton.engine.batch.batch import Batch, Chunk, OnLayer, ignore_layer, make_batch
from baton.engine.batch.static_batch import StaticBatch
from baton.engine.checkpoint.load import LoadedModel
from baton.engine.memory.kv_cache import KvCache
from baton.engine.models.skeleton.decoder import Decoder
from baton.engine.models.skeleton.taps import AuxHiddenStates
from baton.engine.passes.expanded import has_expanded
from baton.kernels.cpu import operators
from baton.kernels.cpu.operators import Pass
from baton.kernels.cpu.tape import NUM_OUTPUTS, NUM_TOKENS, NotRecordable, Recorder, Tape
from baton.kernels.latent_attention.latent_attention import MIN_EXPANDED
from baton.kernels.latent_attention.latent_heads import LatentShape

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class TapedModel:
    """Results stay until the next pass: they lie where it will write."""

    batch: StaticBatch
    forward_tape: Tape
    logits_tape: Tape
    max_logits: int
    """Rows of hidden states that the second tape takes."""
    latent: LatentShape | None = None
    """The shape of latents, if long chunks are computed in another form, which no tape has."""
    taps: AuxHiddenStates | None = None
    """What is told of the stream within the model, if anybody is."""

    def fits(self, chunks: Sequence[Chunk]) -> bool:
        item_bytes = self.forward_tape.result.itemsize
        return self.batch.fits(chunks) and not has_expanded(chunks, self.latent, item_bytes)

    def forward(self, batch: Batch, on_layer: OnLayer = ignore_layer) -> Tensor:
        """As the model's, of a pass that lies in `batch`.

        A pass of decodes is too short to be stopped after each layer: they are told of afterwards.
        """
        tape, of = self.forward_tape, pass_of(batch)
        play: Callable[[Pass], None] = tape.play
        if self.taps is not None:
            if self.taps.is_on:
                self.taps.found = [rows[: of.num_outputs] for rows in tape.further]
            else:
                play = tape.play_bare
        if on_layer is ignore_layer:
            play(of)
        elif batch.sequences.max_query_len > 1:
            tape.play_by_layer(of, on_layer)
        else:
            play(of)
            for layer in range(len(tape.marks)):
                on_layer(layer)
        return tape.result[: of.num_outputs]

    def takes(self, hidden: Tensor) -> bool:
        return (
            len(hidden) <= self.max_logits
            and hidden.dtype is self.forward_tape.result.dtype
            and hidden.is_contiguous()
        )

    def logits(self, hidden: Tensor) -> Tensor:
        self.logits_tape.give(hidden)
        self.logits_tape.play(Pass(num_outputs=len(hidden)))
        return self.logits_tape.result[: len(hidden)]


def pass_of(batch: Batch) -> Pass:
    return Pass(
        num_tokens=len(batch.tokens),
        num_outputs=len(batch.output_rows),
        num_requests=batch.sequences.num_requests,
    )


@torch.inference_mode()
def record(
    loaded: LoadedModel, cache: KvCache, batch: StaticBatch, taps: AuxHiddenStates | None = None
) -> TapedModel | None:
    """None, said in the log, if the model must be run as it is. The cache is empty, before and
    after."""
    model, dtype = loaded.model, getattr(torch, loaded.info.dtype)
    trials = _trials(cache, batch, taps)
    if trials is None or not operators.runs(torch.empty(0, dtype=dtype, device=cache.device)):
        return None
    try:
        taped = _record(model, cache, batch, trials.recorded, taps)
        if trials.run_taped(taped) == trials.run_model(model) and trials.is_bare_alike(taped):
            return taped
        reason = "a part of it computes with torch"
    except NotRecordable as error:
        reason = str(error)
    finally:
        trials.wipe()
    logger.warning("this model is run operator by operator, which is slower: %s", reason)
    return None


def _record(
    model: Decoder,
    cache: KvCache,
    batch: StaticBatch,
    chunks: Sequence[Chunk],
    taps: AuxHiddenStates | None,
) -> TapedModel:
    limits = batch.limits
    with Recorder() as recorder:
        hidden = model(batch.fill(chunks), cache.layers, recorder.mark, taps)
    forward = recorder.tape(
        hidden,
        max_tokens=limits.max_tokens,
        max_outputs=limits.max_tokens,
        further=() if taps is None else taps.found,
    )
    given = hidden.clone()
    with Recorder() as recorder:
        logits = model.logits(given)
    return TapedModel(
        batch=batch,
        forward_tape=forward,
        logits_tape=recorder.tape(logits, max_tokens=0, max_outputs=limits.max_logits, given=given),
        max_logits=limits.max_logits,
        latent=model.latent,
        taps=taps,
    )


@dataclass(frozen=True, slots=True)
class _Trials:
    """Small passes over the first blocks of a cache that nobody uses yet."""

    cache: KvCache
    num_blocks: int
    recorded: Sequence[Chunk]
    """One request, of which all but the first two outputs are wanted."""
    played: Sequence[Sequence[Chunk]]
    """One of more tokens than were recorded; two new requests; the next token of both."""
    taps: AuxHiddenStates | None

    def run_taped(self, taped: TapedModel) -> list[bytes]:
        """All bits of outputs and KV."""
        self.wipe()
        found = []
        for chunks in self.played:
            hidden = taped.forward(taped.batch.fill(chunks))
            found += [_bits(hidden), *self._tapped(), _bits(taped.logits(hidden))]
        return found + self._kv()

    def is_bare_alike(self, taped: TapedModel) -> bool:
        """Whether what nobody taps is the same."""
        if self.taps is None:
            return True
        found = []
        for is_on in (False, True):
            self.wipe()
            self.taps.is_on = is_on
            hidden = [_bits(taped.forward(taped.batch.fill(each))) for each in self.played]
            found.append(hidden + self._kv())
        return found[0] == found[1]

    def run_model(self, model: Decoder) -> list[bytes]:
        """Results of `played` by the model itself, without the tape, as bytes."""
        self.wipe()
        found = []
        for chunks in self.played:
            batch = make_batch(chunks, self.cache.layout.block_size, self.cache.device)
            hidden = model(batch, self.cache.layers, ignore_layer, self.taps)
            found += [_bits(hidden), *self._tapped(), _bits(model.logits(hidden))]
        return found + self._kv()

    def wipe(self) -> None:
        for plane in self.cache.planes:
            plane[: self.num_blocks].zero_()

    def _tapped(self) -> list[bytes]:
        return [] if self.taps is None else [_bits(found) for found in self.taps.found]

    def _kv(self) -> list[bytes]:
        return [_bits(plane[: self.num_blocks]) for plane in self.cache.planes]


def _trials(cache: KvCache, batch: StaticBatch, taps: AuxHiddenStates | None) -> _Trials | None:
    """None if there is no room for a few tokens."""
    layout, limits = cache.layout, batch.limits
    first = layout.num_blocks_for(NUM_TOKENS)
    num_blocks = first + layout.num_blocks_for(3)
    has_room = (
        cache.num_blocks >= num_blocks
        and limits.max_tokens >= NUM_TOKENS
        and limits.max_requests >= 3  # rows of logits, too
        and limits.max_blocks >= first
    )
    if not has_room:
        return None
    one, other = range(first), range(first, num_blocks)
    num_many = min(limits.max_tokens, limits.max_blocks * layout.block_size)
    num_many = min(num_many, num_blocks * layout.block_size, MIN_EXPANDED - 1)
    many = [token % NUM_TOKENS for token in range(num_many)]
    return _Trials(
        cache=cache,
        num_blocks=num_blocks,
        recorded=[Chunk(range(NUM_TOKENS), 0, one, NUM_OUTPUTS)],
        played=[
            [Chunk(many, 0, range(num_blocks), 1)],
            [Chunk([3, 1, 4], 0, one, 1), Chunk([5, 2], 0, other, 2, lane=1)],
            [Chunk([6], 3, one, 1), Chunk([0], 2, other, 1, lane=1)],
        ],
        taps=taps,
    )


def _bits(tensor: Tensor) -> bytes:
    flat = tensor.contiguous().view(torch.uint8).flatten()
    return bytes(memoryview((ctypes.c_uint8 * len(flat)).from_address(flat.data_ptr())))
