"""A model's passes on a CPU as two recorded tapes of operator calls: from the batch to hidden
states, and from those to logits.

    StaticBatch --forward--> hidden [S, D] --logits--> [S, V] float32

A model is recorded while its cache is empty. Work that it does with torch instead of an operator
would be missing from the tape. So some passes are run both ways, and the tape is used only if all
outputs and all KV are bit-identical.
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
    """A recorded model. Results are valid until the next pass, which overwrites them."""

    batch: StaticBatch
    forward_tape: Tape
    logits_tape: Tape
    max_logits: int
    """Most rows of hidden states that `logits_tape` takes."""
    latent: LatentShape | None = None
    """The shape of latent attention, if long chunks use its expanded form, which is not
    recorded."""
    taps: AuxHiddenStates | None = None
    """Hidden states that the tape copies out, if any."""

    def fits(self, chunks: Sequence[Chunk]) -> bool:
        """Whether the tape can run `chunks`."""
        item_bytes = self.forward_tape.result.itemsize
        return self.batch.fits(chunks) and not has_expanded(chunks, self.latent, item_bytes)

    def forward(self, batch: Batch, on_layer: OnLayer = ignore_layer) -> Tensor:
        """The hidden states [S, D] of the pass in `batch`, as the model would compute them.

        A decode pass is too short to stop after each layer, so `on_layer` is called for all layers
        at its end.
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
        """Whether `logits` can be called with `hidden`."""
        return (
            len(hidden) <= self.max_logits
            and hidden.dtype is self.forward_tape.result.dtype
            and hidden.is_contiguous()
        )

    def logits(self, hidden: Tensor) -> Tensor:
        """Hidden states [S, D] -> float32 logits [S, V]."""
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
    """Record the model; None if it cannot be recorded, with a warning in the log if a part of it
    has no operator. The cache must be empty, and is empty afterwards."""
    model, dtype = loaded.model, getattr(torch, loaded.info.dtype)
    trials = _trials(cache, batch, taps, has_adapters=model.adapters.exist)
    if trials is None or not operators.runs(torch.empty(0, dtype=dtype, device=cache.device)):
        return None
    try:
        taped = _record(model, cache, batch, trials.recorded, taps)
        if trials.run_taped(taped) == trials.run_model(model) and trials.is_same_without_taps(
            taped
        ):
            return taped
        reason = "a part of it computes with torch"
    except NotRecordable as error:
        reason = str(error)
    finally:
        trials.wipe()
    logger.warning("this model runs without a recorded tape, which is slower: %s", reason)
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
    """Small passes over the first blocks of a cache that is not used yet."""

    cache: KvCache
    num_blocks: int
    recorded: Sequence[Chunk]
    """The pass to record: one request, of which all but the first two outputs are wanted."""
    played: Sequence[Sequence[Chunk]]
    """The passes to compare: one of more tokens than were recorded; two new requests; the next
    token of both."""
    taps: AuxHiddenStates | None

    def run_taped(self, taped: TapedModel) -> list[bytes]:
        """Outputs and KV of the `played` passes from the tape, as bytes."""
        self.wipe()
        found = []
        for chunks in self.played:
            hidden = taped.forward(taped.batch.fill(chunks))
            found += [_bits(hidden), *self._tapped(), _bits(taped.logits(hidden))]
        return found + self._kv()

    def is_same_without_taps(self, taped: TapedModel) -> bool:
        """Whether the tape gives the same results with taps switched off as with them on."""
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
        """Outputs and KV of the `played` passes from the model itself, as bytes."""
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


def _trials(
    cache: KvCache, batch: StaticBatch, taps: AuxHiddenStates | None, *, has_adapters: bool
) -> _Trials | None:
    """The trial passes; None if the cache or the limits have no room for a few tokens."""
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
    adapter = int(has_adapters)  # both kinds of rows are compared
    many = [token % NUM_TOKENS for token in range(num_many)]
    return _Trials(
        cache=cache,
        num_blocks=num_blocks,
        recorded=[Chunk(range(NUM_TOKENS), 0, one, NUM_OUTPUTS)],
        played=[
            [Chunk(many, 0, range(num_blocks), 1)],
            [Chunk([3, 1, 4], 0, one, 1), Chunk([5, 2], 0, other, 2, 1, adapter)],
            [Chunk([6], 3, one, 1), Chunk([0], 2, other, 1, 1, adapter)],
        ],
        taps=taps,
    )


def _bits(tensor: Tensor) -> bytes:
    flat = tensor.contiguous().view(torch.uint8).flatten()
    return bytes(memoryview((ctypes.c_uint8 * len(flat)).from_address(flat.data_ptr())))
