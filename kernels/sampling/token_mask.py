"""Bitmasks over the vocabulary, as grammars return them, and scores without the tokens that are not
in a mask.

    bit t % 32 of word t // 32      set if token t is in

S rows, R of them with a mask, V vocabulary, W = ceil(V / 32) words.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from functools import lru_cache

import torch
from torch import Tensor

from baton.kernels.cpu import operators
from baton.kernels.sampling import token_mask_cpu as cpu

WORD_BITS = 32


def num_words(vocab_size: int) -> int:
    return -(-vocab_size // WORD_BITS)


@lru_cache(maxsize=8)
def full_mask(vocab_size: int) -> Tensor:
    """The mask [W] of all tokens. Not to be changed."""
    return pack_tokens(range(vocab_size), vocab_size)


def pack_tokens(tokens: Collection[int], vocab_size: int) -> Tensor:
    """The mask [W] of a set of tokens; tokens beyond the vocabulary are ignored."""
    octets = bytearray(num_words(vocab_size) * WORD_BITS // 8)
    for token in tokens:
        if 0 <= token < vocab_size:
            octets[token // 8] |= 1 << token % 8
    return torch.frombuffer(octets, dtype=torch.int32)


def unpack_mask(mask: Tensor, vocab_size: int) -> Tensor:
    """int32 [R, W] -> bool [R, V], on the device of `mask`."""
    _check(mask, vocab_size)
    places = torch.arange(WORD_BITS, dtype=torch.int32, device=mask.device)
    spread = (mask.unsqueeze(-1) >> places).bitwise_and_(1)  # [R, W, 32]
    return spread.bool().flatten(1)[:, :vocab_size]


def keep_tokens(scores: Tensor, rows: Sequence[int], masks: Tensor) -> Tensor:
    """Scores [S, V] in which each of `rows`, in order, is -inf where its mask, of int32 [R, W] on
    the same device, has no token. The given scores are not changed."""
    num_rows, vocab_size = scores.shape
    _check(masks, vocab_size)
    if scores.dtype is torch.float32 and scores.stride(-1) == 1 and operators.runs(scores):
        return cpu.keep_tokens(scores, rows, masks)
    kept = unpack_mask(masks, vocab_size)
    if len(rows) == num_rows:
        return torch.where(kept, scores, -torch.inf)
    masked = scores.clone()
    masked[rows] = torch.where(kept, scores[rows], -torch.inf)
    return masked


def _check(mask: Tensor, vocab_size: int) -> None:
    if mask.dtype != torch.int32 or mask.shape[-1] != num_words(vocab_size):
        raise ValueError(f"no mask of {vocab_size} tokens: {mask.dtype} {tuple(mask.shape)}")


def reference(words: Sequence[int], vocab_size: int) -> set[int]:
    """The definition: the tokens of one mask."""
    return {t for t in range(vocab_size) if words[t // WORD_BITS] >> (t % WORD_BITS) & 1}
