"""Batch-invariant attention: a token gets the same bits alone, in any batch, in any chunk of its
prompt, and whether it is drafted or decoded.

    chunk of a prompt         | 16 tokens | 16 tokens | 16 tokens | 7     runs of at most MAX_RUN
    decode tokens, drafts     one run per request
    every run                 paged_decode_gpu.py: same tiles, splits of the same keys, all merged

The partial result of a split depends on its keys only: keys are read in tiles that begin at
multiples of KEYS, masked keys leave the sums unchanged, and rows of a tile are independent. All
splits have the same length and are merged one after the other.

This is slower than `paged_attention`: tiles of prompts have half as many rows, a single context
occupies fewer programs, and every result is merged. If the partial results of a pass would exceed
MAX_PARTIAL_BYTES, its runs are processed in several parts.
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
"""Keys per split. A context of 131,072 has 128 splits, whose partial results are kept; a single
context of 4,096 occupies four programs per KV head."""


def batch_invariant_attention(
    q: Tensor,
    cache: PagedCache,
    sequences: Sequences,
    window: Window = None,
    scoring: Scoring = PLAIN,
    sinks: Tensor | None = None,
    *,
    split_keys: int = SPLIT_KEYS,
) -> Tensor:
    """Attention output [T, N, H] of q [T, N, H], with splits of at least the given number of
    keys."""
    rules = ScoringRules(scoring, window, sinks)
    # The first tokens, which are visible beside a window, must fit in one split; otherwise the
    # number of their splits would depend on the position of the window.
    split_keys = max(split_keys, triton.next_power_of_2(rules.num_first))
    out = torch.empty_like(q)
    runs = sequences.in_runs()
    num_splits = triton.cdiv(sequences.max_context_len, split_keys)
    run_bytes = 4 * runs.max_query_len * q.shape[1] * num_splits * cache.width
    fit = max(1, MAX_PARTIAL_BYTES // run_bytes)
    num_runs = fit // 4 * 4 or fit  # fours begin where Triton wants it: else it compiles anew
    for first in range(0, runs.num_requests, num_runs):
        stop = min(first + num_runs, runs.num_requests)
        paged_decode(
            q, out, cache, runs.some(first, stop), rules, split_keys, is_batch_invariant=True
        )
    return out
