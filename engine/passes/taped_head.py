"""The passes of a draft head as a recorded tape on a CPU, as `taped_model.py` does for models.

    hidden states, at a fixed address  --+
    StaticBatch                        --+--> out [T, D]

The tape is recorded while the cache is empty. It is used only if it gives bit-identical results on
other passes.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from baton.engine.batch.batch import Batch, Chunk, make_batch
from baton.engine.batch.static_batch import StaticBatch
from baton.engine.memory.kv_cache import KvCache
from baton.engine.models.heads.draft_head import DraftHead
from baton.engine.passes.taped_model import pass_of
from baton.kernels.cpu import operators
from baton.kernels.cpu.tape import NUM_TOKENS, NotRecordable, Recorder, Tape
from baton.kernels.latent_attention.latent_attention import MIN_EXPANDED

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class TapedHead:
    """A recorded head. Results are valid until the next pass, which overwrites them."""

    batch: StaticBatch
    hidden: Tensor  # [max tokens, D]
    tape: Tape

    def fits(self, chunks: Sequence[Chunk]) -> bool:
        """Whether the tape can run `chunks`: they are within the limits, and so short that latent
        attention has the recorded form."""
        is_short = all(len(chunk.tokens) < MIN_EXPANDED for chunk in chunks)
        return is_short and self.batch.fits(chunks)

    def forward(self, chunks: Sequence[Chunk], hidden: Tensor) -> Tensor:
        """The outputs [S, D] of the tokens that the chunks want, from inputs `hidden` [T, D]. The
        chunks must fit."""
        batch = self.batch.fill(chunks)
        self.hidden[: len(hidden)].copy_(hidden)
        self.tape.play(pass_of(batch))
        return wanted_rows(self.tape.result[: len(hidden)], batch)


def run_head(head: DraftHead, cache: KvCache, chunks: Sequence[Chunk], hidden: Tensor) -> Tensor:
    """The outputs [S, D] of any chunks, from inputs `hidden` [T, D], without a tape."""
    batch = make_batch(chunks, cache.layout.block_size, cache.device)
    return wanted_rows(head(hidden, batch.tokens, batch.sequences, cache.layers), batch)


def wanted_rows(out: Tensor, batch: Batch) -> Tensor:
    """The rows of `out` [T, D] whose outputs are wanted, [S, D]."""
    return out if len(batch.output_rows) == len(out) else out[batch.output_rows]


@torch.inference_mode()
def record_head(head: DraftHead, cache: KvCache, width: int) -> TapedHead | None:
    """Record the head of a model of this width; None if it cannot be recorded, with a warning in
    the log if a part of it has no operator. The cache must be empty, and is empty afterwards."""
    dtype = getattr(torch, cache.dtype or "float32")
    blocks = range(cache.layout.num_blocks_for(NUM_TOKENS))
    has_room = cache.num_blocks >= len(blocks) <= cache.limits.max_blocks
    if not has_room or not operators.runs(torch.empty(0, dtype=dtype, device=cache.device)):
        return None
    try:
        taped = _record(
            head, cache, torch.ones(cache.limits.max_tokens, width, dtype=dtype), blocks
        )
        played = _trial(taped.forward, cache, taped.hidden, blocks)
        computed = _trial(partial(run_head, head, cache), cache, taped.hidden, blocks)
        if all(map(torch.equal, played, computed)):
            return taped
        reason = "a part of it computes with torch"
    except NotRecordable as error:
        reason = str(error)
    finally:
        _wipe(cache, blocks)
    logger.warning("the draft head runs without a recorded tape, which is slower: %s", reason)
    return None


def _record(head: DraftHead, cache: KvCache, hidden: Tensor, blocks: Sequence[int]) -> TapedHead:
    static = StaticBatch(cache.limits, cache.layout.block_size)
    batch = static.fill([Chunk(range(NUM_TOKENS), 0, blocks, num_outputs=0)])
    with Recorder() as recorder:
        out = head(hidden[:NUM_TOKENS], batch.tokens, batch.sequences, cache.layers)
    tape = recorder.tape(out, max_tokens=cache.limits.max_tokens, max_outputs=0)
    return TapedHead(static, hidden, tape)


def _trial(
    run: Callable[[Sequence[Chunk], Tensor], Tensor],
    cache: KvCache,
    like: Tensor,
    blocks: Sequence[int],
) -> list[Tensor]:
    """The bytes of the outputs of two passes, and of the KV that they write."""
    _wipe(cache, blocks)
    found = []
    for tokens, start in ([3, 1, 4], 0), ([2], 3):
        width = like.shape[1]
        hidden = torch.arange(len(tokens) * width).view(-1, width).sin().to(like.dtype)
        found.append(run([Chunk(tokens, start, blocks, len(tokens))], hidden).clone())
    found += [plane[: len(blocks)].clone() for plane in cache.planes]
    return [each.contiguous().view(torch.uint8) for each in found]


def _wipe(cache: KvCache, blocks: Sequence[int]) -> None:
    for plane in cache.planes:
        plane[: len(blocks)].zero_()
