# mypy: allow-untyped-defs, allow-untyped-calls, allow-untyped-decorators, allow-incomplete-defs
# mypy: no-warn-return-any
"""Draws a token from each row without sorting: see kernels/sampling/draw_token.py for the
definition, and kernels/sampling/token_filter_gpu.py for the filters.

Chunks of a row are processed in parallel: noise is computed, for four tokens at a time, where a
chunk has a token that may win; the best of all chunks is the row's token.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from baton.kernels.sampling.token_filter import Filters
from baton.kernels.sampling.token_filter_gpu import depth_limits, depth_of

CHUNK = 4096
"""Tokens that one program draws from."""


def draw_token(
    scores: Tensor,
    rows: Tensor,
    best: Tensor,
    temperature: Tensor,
    filters: Filters,
    streams: Tensor,
    *,
    is_cut: bool = True,
) -> Tensor:
    """The tokens [n] drawn for rows [n] of float32 scores [S, V], with best tokens [S]."""
    num_rows, vocab_size = len(rows), scores.shape[1]
    limits = depth_limits(scores, rows, best, temperature, filters, is_cut=is_cut)
    num_chunks = triton.cdiv(vocab_size, CHUNK)
    values = torch.empty(num_rows, num_chunks, dtype=torch.float64, device=scores.device)
    tokens = torch.empty(num_rows, num_chunks, dtype=torch.int64, device=scores.device)
    _draw_from_chunks[num_chunks, num_rows](
        scores, scores.stride(0), rows, best, temperature, limits, streams,
        values, tokens, vocab_size, CHUNK=CHUNK, num_warps=8,
    )  # fmt: skip
    return tokens.gather(1, values.argmax(1, keepdim=True)).squeeze(1)


@triton.jit
def _draw_from_chunks(
    scores, stride, rows, best, temperature, limits, streams, values, tokens, vocab_size,
    CHUNK: tl.constexpr,
):  # fmt: skip
    program = tl.program_id(1)
    row = tl.load(rows + program)
    scores += row * stride
    top = tl.load(scores + tl.load(best + row))
    heat = tl.load(temperature + program)
    limit = tl.load(limits + program).to(tl.int64)
    quad = tl.program_id(0) * (CHUNK // 4) + tl.arange(0, CHUNK // 4)
    value = tl.full([CHUNK // 4], float("-inf"), tl.float64)
    winner = quad * 4
    num_live = tl.full([], 0, tl.int32)
    for part in tl.static_range(4):
        token = quad * 4 + part
        _, bits = depth_of(scores, token, top, heat, token < vocab_size)
        num_live += tl.sum((bits <= limit).to(tl.int32), 0)
    if num_live > 0:
        streams += program * 4
        seed = (tl.load(streams + 1) << 32) | tl.load(streams)
        zeros = (quad * 0).to(tl.uint32)
        position = zeros + tl.load(streams + 2).to(tl.uint32)
        choice = zeros + tl.load(streams + 3).to(tl.uint32)
        word0, word1, word2, word3 = tl.philox(seed, quad.to(tl.uint32), position, choice, zeros)
        for part in tl.static_range(4):
            word = word0 if part == 0 else word1 if part == 1 else word2 if part == 2 else word3
            token = quad * 4 + part
            depth, bits = depth_of(scores, token, top, heat, token < vocab_size)
            uniform = (word.to(tl.float64) + 0.5) * 2.3283064365386963e-10  # 2^-32
            noise = -tl.log(-tl.log(uniform))
            noisy = tl.where(bits <= limit, noise - depth.to(tl.float64), float("-inf"))
            winner = tl.where(noisy > value, token, winner)
            value = tl.maximum(value, noisy)
    largest = tl.max(value, 0)
    first = tl.min(tl.where(value == largest, winner, 0x7FFFFFFF), 0)
    at = program * tl.num_programs(0) + tl.program_id(0)
    tl.store(values + at, largest)
    tl.store(tokens + at, tl.minimum(first, vocab_size - 1).to(tl.int64))
