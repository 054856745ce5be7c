# mypy: allow-untyped-defs, allow-untyped-calls, allow-untyped-decorators, allow-incomplete-defs
# mypy: no-warn-return-any
"""Finds thresholds of top-k, top-p and min-p for each row without a sort.

    depth d = (best - score) / temperature >= 0      its bits, as an integer, are in the same order
    top-k   the least D with  #{d <= D} >= k
    top-p   the least D with  mass{d <= D} >= p * mass of the tokens kept by top-k
    min-p   D = -log(min p)

A row is read twice by one program per chunk, and the remaining candidates by a single program:

    survey    per chunk: number and mass of the tokens that are at most as deep as each of 16 edges
    list      the depths of the tokens between the two edges that enclose D
    narrow    D within that list, three bits per pass: each counts, or sums, the tokens below eight
              values at a time

The list has a few hundred tokens for a peaked row, and all tokens for a flat one. Ties are kept or
dropped together. Mass is an integer in units of 2^-44, so the order of additions does not matter.

n rows, V vocabulary, C chunks of a row.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from baton.kernels.sampling.token_filter import Filters

CHUNK = 4096
EDGES = tl.constexpr(16)
LAST_EDGE = tl.constexpr(15)
UNIT = tl.constexpr(2.0**44)
"""A mass of 1 as an integer; 2^18 of them fit into an int64."""
DEEPEST = tl.constexpr(0x7F800000)
"""The bits of infinity."""


def depth_limits(
    scores: Tensor,
    rows: Tensor,
    best: Tensor,
    temperature: Tensor,
    filters: Filters,
    *,
    is_cut: bool = True,
) -> Tensor:
    """int32 [n]: the bits of D for rows [n] of float32 scores [S, V] with best tokens [S].

    Scores are only read if some row `is_cut`, by top-k or top-p.
    """
    num_rows, vocab_size = len(rows), scores.shape[1]
    num_chunks, num_cut = triton.cdiv(vocab_size, CHUNK), num_rows if is_cut else 0
    surveyed = num_cut, num_chunks, EDGES.value
    counts = torch.empty(surveyed, dtype=torch.int32, device=scores.device)
    masses = torch.empty(surveyed, dtype=torch.int64, device=scores.device)
    listed = torch.empty(num_cut, vocab_size, dtype=torch.int32, device=scores.device)
    limits = torch.empty(num_rows, dtype=torch.int32, device=scores.device)
    chunks = triton.next_power_of_2(num_chunks)
    if is_cut:
        _survey[num_chunks, num_rows](
            scores, scores.stride(0), rows, best, temperature, filters.top_k, filters.top_p,
            counts, masses, vocab_size, CHUNK=CHUNK, BLOCK=512, num_warps=8,
        )  # fmt: skip
        _list[num_chunks, num_rows](
            scores, scores.stride(0), rows, best, temperature, filters.top_k, filters.top_p,
            counts, masses, listed, vocab_size, CHUNK=CHUNK, CHUNKS=chunks, BLOCK=1024, num_warps=8,
        )  # fmt: skip
    _narrow[num_rows,](
        filters.top_k, filters.top_p, filters.min_p, counts, masses, listed, limits,
        vocab_size, num_chunks, CHUNKS=chunks, BLOCK=1024, num_warps=8,
    )  # fmt: skip
    return limits


@triton.jit
def depth_of(scores, token, top, heat, inside):
    """A token's depth, and its bits as int64: infinite for NaN, and deeper than that outside."""
    score = tl.load(scores + token, mask=inside, other=float("-inf"))
    depth = tl.maximum(tl.div_rn(top - score, heat), 0.0)
    depth = tl.where(inside & (score == score), depth, float("inf"))
    bits = depth.to(tl.int32, bitcast=True).to(tl.int64)
    return depth, tl.where(inside, bits, 0x7FFFFFFF)


@triton.jit
def _mass(depth):
    return (tl.exp(-depth) * UNIT).to(tl.int64)


@triton.jit
def _bits_of_edge(edge):
    """Bits of an edge: at multiples of one half up to 4, of 1 up to 8, then 10, 13, 18 and
    infinity; -1 before the first edge."""
    wide = edge.to(tl.float32)
    depth = tl.where(edge < 8, (wide + 1) * 0.5, wide - 3)
    depth = tl.where(edge == 12, 10.0, depth)
    depth = tl.where(edge == 13, 13.0, depth)
    depth = tl.where(edge == 14, 18.0, depth)
    depth = tl.where(edge >= LAST_EDGE, float("inf"), depth)
    return tl.where(edge < 0, -1, depth.to(tl.int32, bitcast=True).to(tl.int64))


@triton.jit
def _is_filtered(k, p, vocab_size):
    return ((k > 0) & (k < vocab_size)) | (p < 1)


@triton.jit
def _survey(
    scores, stride, rows, best, temperature, top_k, top_p, counts, masses, vocab_size,
    CHUNK: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    program = tl.program_id(1).to(tl.int64)
    if not _is_filtered(tl.load(top_k + program), tl.load(top_p + program), vocab_size):
        return
    row = tl.load(rows + program)
    scores += row * stride
    top = tl.load(scores + tl.load(best + row))
    heat = tl.load(temperature + program)
    edge = tl.arange(0, EDGES)
    edges = _bits_of_edge(edge)
    count = tl.zeros([EDGES], tl.int32)
    mass = tl.zeros([EDGES], tl.int64)
    for start in range(0, CHUNK, BLOCK):
        token = tl.program_id(0) * CHUNK + start + tl.arange(0, BLOCK)
        depth, bits = depth_of(scores, token, top, heat, token < vocab_size)
        is_below = bits[:, None] <= edges[None, :]
        count += tl.sum(is_below.to(tl.int32), 0)
        mass += tl.sum(tl.where(is_below, _mass(depth)[:, None], 0), 0)
    at = (program * tl.num_programs(0) + tl.program_id(0)) * EDGES + edge
    tl.store(counts + at, count)
    tl.store(masses + at, mass)


@triton.jit
def _at(values, edge):
    """The number or mass of tokens at most as deep as an edge; 0 before the first."""
    return tl.sum(tl.where(tl.arange(0, EDGES) == edge, values, 0), 0)


@triton.jit
def _surveyed(counts, masses, program, num_chunks, CHUNKS: tl.constexpr):
    """Counts and masses by chunk and edge."""
    chunk = tl.arange(0, CHUNKS)
    at = (program * num_chunks + chunk)[:, None] * EDGES + tl.arange(0, EDGES)[None, :]
    inside = (chunk < num_chunks)[:, None]
    return tl.load(counts + at, mask=inside, other=0), tl.load(masses + at, mask=inside, other=0)


@triton.jit
def _span(count, mass, k, p, vocab_size):
    """The first and last edge between which D of top-k or of top-p may be.

    The exact set that top-k keeps is not known yet, so the mass that top-p needs is only known to
    be between two bounds: that of the tokens above the span of top-k, at least the best token, and
    that of the tokens up to its end.
    """
    wide = mass.to(tl.float64)
    has_k = (k > 0) & (k < vocab_size)
    of_k = tl.minimum(tl.sum((count < k).to(tl.int32), 0), LAST_EDGE)
    of_k = tl.where(has_k, of_k, LAST_EDGE)
    most = _at(wide, of_k)
    least = tl.where(has_k, tl.maximum(_at(wide, of_k - 1), UNIT), most)
    p = p.to(tl.float64)
    first = tl.sum((wide < p * least).to(tl.int32), 0)
    last = tl.sum((wide < p * most).to(tl.int32), 0)
    first = tl.where(p < 1, tl.minimum(first, of_k), of_k)
    last = tl.where(has_k, of_k, tl.minimum(last, of_k))
    return first, tl.maximum(first, last)


@triton.jit
def _list(
    scores, stride, rows, best, temperature, top_k, top_p, counts, masses, listed, vocab_size,
    CHUNK: tl.constexpr, CHUNKS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    program = tl.program_id(1).to(tl.int64)
    k, p = tl.load(top_k + program), tl.load(top_p + program)
    if not _is_filtered(k, p, vocab_size):
        return
    count, mass = _surveyed(counts, masses, program, tl.num_programs(0), CHUNKS)
    first, last = _span(tl.sum(count, 0), tl.sum(mass, 0), k, p, vocab_size)
    before = tl.where((tl.arange(0, CHUNKS) < tl.program_id(0))[:, None], count, 0)
    before = tl.sum(before, 0)
    place = _at(before, last) - _at(before, first - 1)
    row = tl.load(rows + program)
    scores += row * stride
    top = tl.load(scores + tl.load(best + row))
    heat = tl.load(temperature + program)
    above, deepest = _bits_of_edge(first - 1), _bits_of_edge(last)
    listed += program * vocab_size
    for start in range(0, CHUNK, BLOCK):
        token = tl.program_id(0) * CHUNK + start + tl.arange(0, BLOCK)
        _, bits = depth_of(scores, token, top, heat, token < vocab_size)
        is_listed = (bits > above) & (bits <= deepest)
        places = place + tl.cumsum(is_listed.to(tl.int32), 0) - 1
        tl.store(listed + places, bits.to(tl.int32), mask=is_listed)
        place += tl.sum(is_listed.to(tl.int32), 0)


@triton.jit
def _narrow(
    top_k, top_p, min_p, counts, masses, listed, limits, vocab_size, num_chunks,
    CHUNKS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    program = tl.program_id(0).to(tl.int64)
    k, p = tl.load(top_k + program), tl.load(top_p + program)
    # Tokens dropped by min-p count in the sums of the other filters, but cannot be their result.
    limit = (-tl.log(tl.load(min_p + program))).to(tl.int32, bitcast=True).to(tl.int64)
    if _is_filtered(k, p, vocab_size):
        by_chunk, masses_by_chunk = _surveyed(counts, masses, program, num_chunks, CHUNKS)
        count, mass = tl.sum(by_chunk, 0), tl.sum(masses_by_chunk, 0)
        first, last = _span(count, mass, k, p, vocab_size)
        listed += program * vocab_size
        above, deepest = _bits_of_edge(first - 1), _bits_of_edge(last)
        num_above, mass_above = _at(count, first - 1), _at(mass, first - 1)
        num_listed = _at(count, last) - num_above
        of_k = DEEPEST + tl.zeros([], tl.int64)
        total = _at(mass, LAST_EDGE)
        if (k > 0) & (k < vocab_size):
            of_k = _least_limit(
                listed, num_listed, k.to(tl.float64), num_above.to(tl.int64),
                above, deepest, of_k, False, BLOCK,
            )  # fmt: skip
            limit = tl.minimum(limit, of_k)
            every = of_k + tl.zeros([8], tl.int64)
            total = mass_above + tl.max(_below(listed, num_listed, every, of_k, True, BLOCK), 0)
        if p < 1:
            wanted = p.to(tl.float64) * total.to(tl.float64)
            of_p = _least_limit(
                listed, num_listed, wanted, mass_above, above, deepest, of_k, True, BLOCK
            )
            limit = tl.minimum(limit, of_p)
    tl.store(limits + program, limit.to(tl.int32))


@triton.jit
def _least_limit(
    listed, num_listed, wanted, found_above, above, deepest, most, IS_MASS: tl.constexpr,
    BLOCK: tl.constexpr,
):  # fmt: skip
    """The least D > `above` up to which the wanted number or mass is reached by tokens that are not
    beyond `most`; `found_above` is the number or mass up to `above`."""
    limit = above + 1
    shift = tl.zeros([], tl.int64) + 30
    while (shift > 0) & ((deepest - limit) >> shift == 0):
        shift -= 3
    while shift >= 0:
        candidates = limit + ((tl.arange(0, 8) + 1).to(tl.int64) << shift) - 1
        found = found_above + _below(listed, num_listed, candidates, most, IS_MASS, BLOCK)
        num_short = tl.minimum(tl.sum((found.to(tl.float64) < wanted).to(tl.int64), 0), 7)
        limit += num_short << shift
        shift -= 3
    return tl.minimum(limit, most)


@triton.jit
def _below(listed, num_listed, candidates, most, IS_MASS: tl.constexpr, BLOCK: tl.constexpr):
    """int64 [8]: number or mass of the listed tokens that are at most as deep as each candidate and
    `most`."""
    found = tl.zeros([8], tl.int64)
    for start in range(0, num_listed, BLOCK):
        place = start + tl.arange(0, BLOCK)
        bits = tl.load(listed + place, mask=place < num_listed, other=0x7FFFFFFF)
        is_below = (bits <= most)[:, None] & (bits[:, None] <= candidates[None, :])
        if IS_MASS:
            mass = _mass(tl.minimum(bits, DEEPEST).to(tl.int32).to(tl.float32, bitcast=True))
            found += tl.sum(tl.where(is_below, mass[:, None], 0), 0)
        else:
            found += tl.sum(is_below.to(tl.int64), 0)
    return found
