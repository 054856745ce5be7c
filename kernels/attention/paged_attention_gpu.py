"""Dispatches the requests of a pass to attention kernels. Each kernel skips the requests of the
others.

    new tokens of a request
    1                         paged_decode_gpu.py      split contexts; all in decode graphs
    2 .. MAX_RUN              the same                 in passes where no request has more
    2 or more                 paged_prefill_gpu.py     tiles of queries
    MIN_TOKENS or more        library_prefill_gpu.py   if the library supports the attention

So drafts verified in a pass with prompts are handled like prompts, as such a pass is bound by
arithmetic. A captured pass with prompts is not: its few tokens may be the end of a long context.
There requests with at most MAX_RUN tokens use splits whatever else is in the batch, and the others
tiles.
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
from baton.kernels.paging.sequences import MAX_RUN, Sequences
from baton.kernels.paging.window import Window


def paged_attention(
    q: Tensor,
    cache: PagedCache,
    sequences: Sequences,
    window: Window = None,
    scoring: Scoring = PLAIN,
    sinks: Tensor | None = None,
) -> Tensor:
    """Attention output [T, N, H] of q [T, N, H]."""
    rules = ScoringRules(scoring, window, sinks)
    out = torch.empty_like(q)
    if sequences.max_query_len <= MAX_RUN:
        paged_decode(q, out, cache, sequences, rules)
        return out
    longest = sequences.max_query_len
    if sequences.is_captured:
        paged_decode(q, out, cache, sequences, rules)
        paged_prefill(q, out, cache, sequences, rules, longest, shortest=MAX_RUN + 1)
        return out
    if library_prefill.takes(q, cache.num_kv_heads, sequences, rules):
        library_prefill.library_prefill(q, out, cache, sequences, rules)
        longest = library_prefill.MIN_TOKENS - 1
    alone = sequences.num_requests == 1 and len(q) > 1
    if not alone:
        paged_decode(q, out, cache, sequences, rules)
    if not alone or longest == sequences.max_query_len:
        paged_prefill(q, out, cache, sequences, rules, longest)
    return out
