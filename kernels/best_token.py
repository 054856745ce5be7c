"""The token of the largest score, the lowest of several.

    scores [S, V] --largest of each chunk--> [S, V / C] --first largest--> chunk --again--> token

The largest of a chunk is found with vector instructions, which its place is not: on a CPU this is
several times as fast as asking for the place at once.

S rows, V vocabulary, C tokens of a chunk.
"""

from __future__ import annotations

import torch
from torch import Tensor

CHUNK = 128
MIN_VOCAB_SIZE = 64 * CHUNK
"""Below it one pass is as fast."""


def best_token(scores: Tensor) -> Tensor:
    """[S, V] -> [S]. A row with NaN in it gives any token."""
    vocab_size = scores.shape[-1]
    if scores.is_cuda or vocab_size < MIN_VOCAB_SIZE:
        return scores.argmax(-1)
    whole = vocab_size // CHUNK * CHUNK
    largest = scores[:, :whole].view(-1, whole // CHUNK, CHUNK).amax(-1)
    if whole < vocab_size:
        largest = torch.cat((largest, scores[:, whole:].amax(-1, keepdim=True)), dim=-1)
    # The last chunk reaches back over the one before it, where nothing is as large as in itself.
    first = (largest.argmax(-1, keepdim=True) * CHUNK).clamp_(max=vocab_size - CHUNK)  # [S, 1]
    chunk = scores.gather(-1, first + torch.arange(CHUNK))
    return first.squeeze(-1) + chunk.argmax(-1)


def reference(scores: list[float]) -> int:
    """The definition, for one row."""
    return scores.index(max(scores))
