# mypy: allow-untyped-defs, allow-untyped-calls, allow-untyped-decorators, allow-incomplete-defs
# mypy: no-warn-return-any
"""The best token of each row, and whether all of its scores are finite, in one read of the scores.

a program    one chunk of one row: its largest score, the first place of it, whether all are finite
torch        the first of the chunks with the largest score
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

CHUNK = 8192
"""Tokens of one program: a few rows of a large vocabulary then occupy every multiprocessor."""


def best_finite_token(scores: Tensor) -> tuple[Tensor, Tensor]:
    """float32 [S, V] -> tokens [S], finite [S]. The token of a row with NaN is arbitrary."""
    num_rows, vocab_size = scores.shape
    shape = num_rows, triton.cdiv(vocab_size, CHUNK)
    largest = torch.empty(shape, dtype=torch.float32, device=scores.device)
    tokens = torch.empty(shape, dtype=torch.int64, device=scores.device)
    are_finite = torch.empty(shape, dtype=torch.bool, device=scores.device)
    _best_of_chunk[shape[1], num_rows](
        scores, scores.stride(0), largest, tokens, are_finite, vocab_size, CHUNK=CHUNK, num_warps=8
    )
    best = tokens.gather(1, largest.argmax(1, keepdim=True)).squeeze(1)
    return best, are_finite.all(1)


@triton.jit
def _best_of_chunk(scores, stride, largest, tokens, are_finite, vocab_size, CHUNK: tl.constexpr):
    row = tl.program_id(1).to(tl.int64)
    token = tl.program_id(0) * CHUNK + tl.arange(0, CHUNK)
    inside = token < vocab_size
    score = tl.load(scores + row * stride + token, mask=inside, other=float("-inf"))
    is_finite = (tl.abs(score) < float("inf")) | (token >= vocab_size)  # NaN is below nothing
    score = tl.where(score == score, score, float("-inf"))
    top = tl.max(score, 0)
    first = tl.min(tl.where(score == top, token, 0x7FFFFFFF), 0)
    at = row * tl.num_programs(0) + tl.program_id(0)
    tl.store(largest + at, top)
    tl.store(tokens + at, tl.minimum(first, vocab_size - 1).to(tl.int64))
    tl.store(are_finite + at, tl.min(is_finite.to(tl.int32), 0) != 0)
