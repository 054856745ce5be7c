"""The operator of source/sampling/keep_tokens.cpp."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from baton.kernels.cpu.operators import Call, call

ALL_TOKENS = -1


def keep_tokens(scores: Tensor, rows: Sequence[int], masks: Tensor) -> Tensor:
    """See `token_mask.keep_tokens`; scores of float32 [S, V] with adjacent tokens."""
    num_rows, vocab_size = scores.shape
    mask_of = [ALL_TOKENS] * num_rows
    for number, row in enumerate(rows):
        mask_of[row] = number
    kept = scores.new_empty(num_rows, vocab_size)
    inputs: dict[str, Tensor | float | None] = {
        "scores": scores,
        "masks": masks.contiguous(),
        "mask_of": torch.tensor(mask_of),
        "num_tokens": vocab_size,
        "num_words": masks.shape[-1],
        "stride": scores.stride(0),
    }
    call(Call("keep_tokens_f32", rows=num_rows, inputs=inputs, outputs={"kept": kept}))
    return kept
