"""Which kernel attends whom: three of them share a pass, each leaving out whom it does not take.

one new token             paged_decode.py      split contexts; all there is in captured graphs
several                   paged_prefill.py     tiles of queries
MIN_TOKENS or more        library_prefill.py   where the library knows the kind of attention
"""

from __future__ import annotations

import torch
from torch import Tensor

from baton.kernels.attention import library_prefill_gpu as library_prefill
from baton.kernels.attention.paged_decode_gpu import paged_decode
from baton.kernels.attention.paged_prefill_gpu import paged_prefill
from baton.kernels.attention.scoring import PLAIN, Scoring
from baton.kernels.attention.scoring_gpu import ScoringRules
from baton.kernels.paging.arena_gpu import PagedCache
from baton.kernels.paging.sequences import Sequences
from baton.kernels.paging.window import Window


def paged_attention(
    q: Tensor,
    cache: PagedCache,
    sequences: Sequences,
    window: Window = None,
    scoring: Scoring = PLAIN,
    sinks: Tensor | None = None,
) -> Tensor:
    """What q [T, N, H] attends to, [T, N, H]."""
    rules = ScoringRules(scoring, window, sinks)
    out = torch.empty_like(q)
    if sequences.max_query_len == 1:
        paged_decode(q, out, cache, sequences, rules)
        return out
    longest = sequences.max_query_len
    if library_prefill.takes(q, cache.num_kv_heads, sequences, rules):
        library_prefill.library_prefill(q, out, cache, sequences, rules)
        longest = library_prefill.MIN_TOKENS - 1
    alone = sequences.num_requests == 1 and len(q) > 1
    if not alone:
        paged_decode(q, out, cache, sequences, rules)
    if not alone or longest == sequences.max_query_len:
        paged_prefill(q, out, cache, sequences, rules, longest)
    return out
