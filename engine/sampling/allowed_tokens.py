"""Masks tokens that a row may not sample.

    grammar > allowed_token_ids > bad_words > minimum length

From the strongest rule to the weakest, each leaves some of the tokens that those before it left. A
rule that would leave none is set aside for this draw: an output can always go on. A grammar at its
end, for one, leaves the end-of-sequence tokens alone, whatever the minimum length.

S rows, R of them with rules, V vocabulary. Tokens beyond the vocabulary are never drawn anyway.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

import torch
from torch import Tensor

from baton.engine.sampling.sampling_row import SamplingRow
from baton.kernels.gpu.upload import uploaded
from baton.kernels.sampling.token_mask import num_words, unpack_mask


def forbid_tokens(
    scores: Tensor, rows: Sequence[SamplingRow], eos_token_ids: Collection[int]
) -> Tensor:
    """Return scores [S, V] with -inf where a token may not be drawn."""
    tokens = [
        (
            row.params.allowed_token_ids,
            bad_tokens(row.params.bad_words, row.output),
            _early_stops(row, eos_token_ids),
        )
        for row in rows
    ]
    ruled = [i for i, row in enumerate(rows) if row.matcher is not None or any(tokens[i])]
    if not ruled:
        return scores
    may_draw = torch.ones(
        len(ruled), scores.shape[-1], dtype=torch.bool, device=scores.device
    )  # [R, V]
    _follow_grammars(may_draw, [rows[i] for i in ruled])
    allowed, bad, stops = zip(*(tokens[i] for i in ruled), strict=True)
    _narrow(may_draw, allowed, keeps=True)
    _narrow(may_draw, bad, keeps=False)
    _narrow(may_draw, stops, keeps=False)
    scores = scores.clone()
    scores[ruled] = scores[ruled].masked_fill_(~may_draw, -torch.inf)
    return scores


def bad_tokens(bad_words: Sequence[Sequence[int]], output: Sequence[int]) -> list[int]:
    """The tokens that would complete a bad word after `output`."""
    return [
        word[-1]
        for word in bad_words
        if len(word) <= len(output) + 1
        and list(word[:-1]) == list(output[len(output) + 1 - len(word) :])
    ]


def _early_stops(row: SamplingRow, eos_token_ids: Collection[int]) -> Collection[int]:
    """The tokens that would end an output before its minimum length.

    With a grammar an end-of-sequence token ends it even if it is ignored.
    """
    if len(row.output) >= row.params.min_tokens:
        return ()
    ends_at_eos = row.matcher is not None or not row.params.ignore_eos
    return {*row.params.stop_token_ids, *(eos_token_ids if ends_at_eos else ())}


def _follow_grammars(may_draw: Tensor, rows: Sequence[SamplingRow]) -> None:
    bound = [(i, row) for i, row in enumerate(rows) if row.matcher is not None]
    if not bound:
        return
    masks = torch.empty(len(bound), num_words(may_draw.shape[-1]), dtype=torch.int32)
    for mask, (_, row) in zip(masks, bound, strict=True):
        row.fill_mask(mask)
    may_draw[[i for i, _ in bound]] = unpack_mask(
        uploaded(masks, may_draw.device), may_draw.shape[-1]
    )


def _narrow(may_draw: Tensor, tokens: Sequence[Collection[int]], *, keeps: bool) -> None:
    """Keep only `tokens`, or drop them, one collection per row. A row without any is unchanged."""
    num_rows, vocab_size = may_draw.shape
    concerned = [i for i in range(num_rows) if tokens[i]]
    if not concerned:
        return
    places = [(n, t) for n, i in enumerate(concerned) for t in tokens[i] if 0 <= t < vocab_size]
    before = may_draw[concerned]
    after = torch.full_like(before, not keeps)
    if places:
        row_ids, token_ids = uploaded(torch.tensor(places), may_draw.device).unbind(1)
        after[row_ids, token_ids] = keeps
    after &= before
    may_draw[concerned] = torch.where(after.any(-1, keepdim=True), after, before)
