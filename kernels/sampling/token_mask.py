"""Bitmasks over the vocabulary, as grammars return them, expanded to one bool per token.

    bit t % 32 of word t // 32      set if token t is in

S rows, V vocabulary, W = ceil(V / 32) words.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

import torch
from torch import Tensor

WORD_BITS = 32


def num_words(vocab_size: int) -> int:
    return -(-vocab_size // WORD_BITS)


def unpack_mask(mask: Tensor, vocab_size: int) -> Tensor:
    """int32 [S, W] -> bool [S, V], on the device of `mask`."""
    if mask.dtype != torch.int32 or mask.shape[-1] != num_words(vocab_size):
        raise ValueError(f"no mask of {vocab_size} tokens: {mask.dtype} {tuple(mask.shape)}")
    bits = torch.arange(WORD_BITS, dtype=torch.int32, device=mask.device)
    spread = (mask.unsqueeze(-1) >> bits).bitwise_and_(1)  # [S, W, 32]
    return spread.bool().flatten(1)[:, :vocab_size]


def pack_tokens(tokens: Collection[int], vocab_size: int) -> Tensor:
    """The mask [W] of a set of tokens; tokens beyond the vocabulary are ignored."""
    bits = torch.zeros(num_words(vocab_size) * WORD_BITS, dtype=torch.int64)
    bits[[token for token in tokens if 0 <= token < vocab_size]] = 1
    words = (bits.view(-1, WORD_BITS) << torch.arange(WORD_BITS)).sum(-1)
    return words.to(torch.int32)  # wraps: bit 31 is the sign


def reference(words: Sequence[int], vocab_size: int) -> set[int]:
    """The definition: the tokens of one mask."""
    return {t for t in range(vocab_size) if words[t // WORD_BITS] >> (t % WORD_BITS) & 1}
