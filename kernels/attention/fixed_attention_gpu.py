"""Attention whose sums have one order: a token has the same bits alone, in any batch, in any chunk
of its prompt, and drafted or decoded.

    a prompt's chunk     | 16 tokens | 16 tokens | 16 tokens | 7     runs of MAX_RUN at most
    decoded, drafted     as they are
    every run            paged_decode_gpu.py: the same tiles, splits of the same keys, all merged

What a split gives a row follows from its keys alone: they are read in tiles that begin at multiples
of KEYS, what a row does not see leaves its sums as they were, and rows of a tile do not meet. All
splits are of one length, and merged one after the other.

Slower than `paged_attention`: prompts are read in tiles half as tall, one context alone occupies
fewer programs, and nothing is written without being merged. Partial results of a pass that would be
more than MAX_PARTIAL_BYTES are made, and merged, some runs after the other.
"""

from __future__ import annotations

import torch
import triton
from torch import Tensor

from baton.kernels.attention.paged_decode_gpu import MAX_PARTIAL_BYTES, paged_decode
from baton.kernels.attention.scoring import PLAIN, Scoring
from baton.kernels.attention.scoring_gpu import ScoringRules
from baton.kernels.paging.arena_gpu import PagedCache
from baton.kernels.paging.sequences import Sequences
from baton.kernels.paging.window import Window

SPLIT_KEYS = 1024
"""Keys of a split. Of 131,072 there are 128, whose partial results are kept; one context of 4,096
occupies four programs a KV head."""


def fixed_attention(
    q: Tensor,
    cache: PagedCache,
    sequences: Sequences,
    window: Window = None,
    scoring: Scoring = PLAIN,
    sinks: Tensor | None = None,
    *,
    split_keys: int = SPLIT_KEYS,
) -> Tensor:
    """What q [T, N, H] attends to, [T, N, H], by splits of so many keys, or more."""
    rules = ScoringRules(scoring, window, sinks)
    # The first tokens must fit in one split: else a window's place says in how many parts they are.
    split_keys = max(split_keys, triton.next_power_of_2(rules.num_first))
    out = torch.empty_like(q)
    runs = sequences.in_runs()
    num_splits = triton.cdiv(sequences.max_context_len, split_keys)
    run_bytes = 4 * runs.max_query_len * q.shape[1] * num_splits * cache.width
    fit = max(1, MAX_PARTIAL_BYTES // run_bytes)
    num_runs = fit // 4 * 4 or fit  # fours begin where Triton wants it: else it compiles anew
    for first in range(0, runs.num_requests, num_runs):
        stop = min(first + num_runs, runs.num_requests)
        paged_decode(q, out, cache, runs.some(first, stop), rules, split_keys, is_fixed=True)
    return out
