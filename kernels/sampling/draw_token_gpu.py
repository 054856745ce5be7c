# mypy: allow-untyped-defs, allow-untyped-calls, allow-untyped-decorators, allow-incomplete-defs
# mypy: no-warn-return-any
"""A token drawn from each row without sorting it: see kernels/sampling/draw_token.py for what is
drawn.

    depth d = (best - score) / temperature >= 0      its bits, as an integer, are in the same order
    top-k   the least D with  #{d <= D} >= k
    top-p   the least D with  mass{d <= D} >= p * mass of what top-k left
    min-p   D = -log(min p)

The least D is found as an integer, three bits a reading of the row: each counts, or sums, what lies
below eight values of D at once. Eleven readings, from the L2 cache after the first, in place of a
sort; ties go or stay together by themselves.

Then chunks of the row draw side by side: noise is made, four tokens at a time, where a chunk has a
token that may win; the best of all chunks is the row's.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from baton.kernels.sampling.token_filter import Filters

CHUNK = 4096
"""Tokens that one program draws from."""


def draw_token(
    scores: Tensor,
    rows: Tensor,
    best: Tensor,
    temperature: Tensor,
    filters: Filters,
    streams: Tensor,
) -> Tensor:
    """The tokens [n] that rows [n] of float32 scores [S, V], with best tokens [S], draw."""
    num_rows, vocab_size = len(rows), scores.shape[1]
    limits = torch.empty(num_rows, dtype=torch.int32, device=scores.device)
    _find_limits[num_rows,](
        scores, scores.stride(0), rows, best, temperature,
        filters.top_k, filters.top_p, filters.min_p, limits, vocab_size,
        BLOCK=1024, num_warps=8,
    )  # fmt: skip
    num_chunks = triton.cdiv(vocab_size, CHUNK)
    values = torch.empty(num_rows, num_chunks, dtype=torch.float64, device=scores.device)
    tokens = torch.empty(num_rows, num_chunks, dtype=torch.int64, device=scores.device)
    _draw_from_chunks[num_chunks, num_rows](
        scores, scores.stride(0), rows, best, temperature, limits, streams,
        values, tokens, vocab_size, CHUNK=CHUNK, num_warps=8,
    )  # fmt: skip
    return tokens.gather(1, values.argmax(1, keepdim=True)).squeeze(1)


@triton.jit
def _find_limits(
    scores, stride, rows, best, temperature, top_k, top_p, min_p, limits, vocab_size,
    BLOCK: tl.constexpr,
):  # fmt: skip
    program = tl.program_id(0)
    row = tl.load(rows + program)
    scores += row * stride
    top = tl.load(scores + tl.load(best + row))
    heat = tl.load(temperature + program)
    k = tl.load(top_k + program)
    p = tl.load(top_p + program)
    # What min-p leaves out matters to the others' sums, but not to what they find within it.
    limit = (-tl.log(tl.load(min_p + program))).to(tl.int32, bitcast=True).to(tl.int64)
    of_k = tl.full([], 0x7F800000, tl.int64)
    if (k > 0) & (k < vocab_size):
        of_k = _least_limit(scores, top, heat, vocab_size, k.to(tl.float64), of_k, False, BLOCK)
        limit = tl.minimum(limit, of_k)
    if p < 1:
        every = of_k + tl.zeros([8], tl.int64)
        total = tl.max(_below(scores, top, heat, vocab_size, every, of_k, True, BLOCK), 0)
        wanted = p.to(tl.float64) * total
        of_p = _least_limit(scores, top, heat, vocab_size, wanted, of_k, True, BLOCK)
        limit = tl.minimum(limit, of_p)
    tl.store(limits + program, limit.to(tl.int32))


@triton.jit
def _least_limit(
    scores, top, heat, vocab_size, wanted, most, IS_MASS: tl.constexpr, BLOCK: tl.constexpr
):
    """The least D below which there is as much as wanted, of what is not beyond `most`."""
    limit = tl.full([], 0, tl.int64)
    for digit in range(11):
        shift = 30 - 3 * digit
        candidates = limit + ((tl.arange(0, 8) + 1).to(tl.int64) << shift) - 1
        found = _below(scores, top, heat, vocab_size, candidates, most, IS_MASS, BLOCK)
        num_short = tl.minimum(tl.sum((found < wanted).to(tl.int64), 0), 7)
        limit += num_short << shift
    return tl.minimum(limit, most)


@triton.jit
def _below(
    scores, top, heat, vocab_size, candidates, most, IS_MASS: tl.constexpr, BLOCK: tl.constexpr
):
    """float64 [8]: how many, or what mass, lies at most as deep as each candidate and `most`."""
    found = tl.zeros([8], tl.float64)
    for start in range(0, vocab_size, BLOCK):
        token = start + tl.arange(0, BLOCK)
        depth, bits = _depth(scores, token, top, heat, token < vocab_size)
        is_below = (bits <= most)[:, None] & (bits[:, None] <= candidates[None, :])
        if IS_MASS:
            mass = tl.where(is_below, tl.exp(-depth)[:, None], 0.0)
            found += tl.sum(mass, 0).to(tl.float64)
        else:
            found += tl.sum(is_below.to(tl.int32), 0).to(tl.float64)
    return found


@triton.jit
def _depth(scores, token, top, heat, inside):
    """And its bits as int64; deeper than anything outside, and where there is no number."""
    score = tl.load(scores + token, mask=inside, other=float("-inf"))
    depth = tl.maximum(tl.div_rn(top - score, heat), 0.0)
    depth = tl.where(inside & (score == score), depth, float("inf"))
    bits = depth.to(tl.int32, bitcast=True).to(tl.int64)
    return depth, tl.where(inside, bits, 0x7FFFFFFF)


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
        _, bits = _depth(scores, token, top, heat, token < vocab_size)
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
            depth, bits = _depth(scores, token, top, heat, token < vocab_size)
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
