"""Masks tokens that a row may not sample.

    grammar > allowed_token_ids > bad_words > minimum length

From the strongest rule to the weakest, each leaves some of the tokens that those before it left. A
rule that would leave none is set aside for this draw: an output can always go on. A grammar at its
end, for one, leaves the end-of-sequence tokens alone, whatever the minimum length.

S rows, V vocabulary, W words of a mask (`baton.kernels.sampling.token_mask`). Tokens beyond the
vocabulary are never drawn anyway.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

import torch
from torch import Tensor

from baton.engine.sampling.sampling_row import SamplingRow
from baton.kernels.gpu.upload import uploaded
from baton.kernels.sampling.token_mask import full_mask, keep_tokens, pack_tokens


def forbid_tokens(
    scores: Tensor, rows: Sequence[SamplingRow], eos_token_ids: Collection[int]
) -> Tensor:
    """Return scores [S, V] with -inf where a token may not be drawn."""
    masks: dict[int, Tensor] = {}
    for number, row in enumerate(rows):
        mask = _allowed_mask(row, scores.shape[-1], eos_token_ids)
        if mask is not None:
            masks[number] = mask
    if not masks:
        return scores
    together = uploaded(torch.stack([*masks.values()]), scores.device)
    return keep_tokens(scores, [*masks], together)


def _allowed_mask(
    row: SamplingRow, vocab_size: int, eos_token_ids: Collection[int]
) -> Tensor | None:
    """The mask [W] of the tokens that may be drawn, on the host; None: all may be."""
    allowed = row.params.allowed_token_ids
    bad = bad_tokens(row.params.bad_words, row.output)
    stops = _early_stops(row, eos_token_ids)
    if row.matcher is None and not (allowed or bad or stops):
        return None
    mask = full_mask(vocab_size)
    if row.matcher is not None:
        of_grammar = torch.empty_like(mask)
        row.fill_mask(of_grammar)
        mask = mask & of_grammar
    if allowed:
        mask = _narrowed(mask, pack_tokens(allowed, vocab_size))
    for dropped in (bad, stops):
        if dropped:
            mask = _narrowed(mask, ~pack_tokens(dropped, vocab_size))
    return mask


def _narrowed(mask: Tensor, kept: Tensor) -> Tensor:
    """The tokens of both masks; those of `mask` if they have none in common."""
    both = mask & kept
    return both if both.any() else mask


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
