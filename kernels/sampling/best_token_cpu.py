"""The operator of source/best_token.cpp."""

from __future__ import annotations

import torch
from torch import Tensor

from baton.kernels.cpu.operators import Call, call

MANY_ROWS = 8
"""Rows from which on there is work enough for all threads."""
PART_LEN = 16384
BYTES_OF_BEST = 16


def best_token(scores: Tensor) -> tuple[Tensor, Tensor]:
    """[S, V] -> tokens [S] int64, whether all of a row is finite [S] bool."""
    num_rows, vocab_size = scores.shape
    num_parts = 1 if num_rows >= MANY_ROWS else -(-vocab_size // PART_LEN)
    tokens = torch.empty(num_rows, dtype=torch.int64)
    are_finite = torch.empty(num_rows, dtype=torch.bool)
    parts = torch.empty(num_rows, num_parts * BYTES_OF_BEST, dtype=torch.uint8)
    call(
        Call(
            "best_token_f32",
            rows=num_rows,
            inputs={
                "scores": scores,
                "num_tokens": vocab_size,
                "stride": scores.stride(0),
                "num_parts": num_parts,
            },
            outputs={"tokens": tokens, "are_finite": are_finite, "bests": parts},
        )
    )
    return tokens, are_finite
