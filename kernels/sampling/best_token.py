"""The token with the largest score; ties go to the lowest.

On a CPU one pass over the scores finds it, and checks whether all of them are finite. torch instead
uses

    scores [S, V] --largest of each chunk--> [S, V / C] --first largest--> chunk --again--> token

because it finds the maximum of a chunk with vector instructions, but not its index.

S rows, V vocabulary, C tokens of a chunk.
"""

from __future__ import annotations

import torch
from torch import Tensor

from baton.kernels.cpu import operators
from baton.kernels.sampling import best_token_cpu as cpu

CHUNK = 128
MIN_VOCAB_SIZE = 64 * CHUNK
"""Smallest vocabulary for which this is faster than one pass."""


def best_token(scores: Tensor) -> Tensor:
    """[S, V] -> [S]. The token of a row with NaN is arbitrary."""
    if _is_compiled(scores):
        return cpu.best_token(scores)[0]
    vocab_size = scores.shape[-1]
    if scores.is_cuda or vocab_size < MIN_VOCAB_SIZE:
        return scores.argmax(-1)
    whole = vocab_size // CHUNK * CHUNK
    largest = scores[:, :whole].view(-1, whole // CHUNK, CHUNK).amax(-1)
    if whole < vocab_size:
        largest = torch.cat((largest, scores[:, whole:].amax(-1, keepdim=True)), dim=-1)
    # The last chunk overlaps the one before it. The overlap contains nothing as large as the
    # maximum of the last chunk, or the earlier chunk would have been chosen.
    first = (largest.argmax(-1, keepdim=True) * CHUNK).clamp_(max=vocab_size - CHUNK)  # [S, 1]
    chunk = scores.gather(-1, first + torch.arange(CHUNK))
    return first.squeeze(-1) + chunk.argmax(-1)


def best_finite_token(scores: Tensor) -> tuple[Tensor, Tensor]:
    """[S, V] -> the best token [S] of each row, and whether all of its scores are finite [S]."""
    if _is_compiled(scores):
        return cpu.best_token(scores)
    if scores.is_cuda and scores.dtype is torch.float32 and scores.stride(-1) == 1:
        from baton.kernels.sampling.best_token_gpu import best_finite_token as on_gpu

        return on_gpu(scores)
    # Both reductions return NaN if there is any, so these two numbers per row are sufficient.
    return best_token(scores), scores.amax(-1).isfinite() & scores.amin(-1).isfinite()


def best_finite_on_host(scores: Tensor) -> tuple[list[int], list[bool]] | None:
    """The same as Python lists, if that is faster than tensors; otherwise None."""
    return cpu.best_token_on_host(scores) if _is_compiled(scores) else None


def _is_compiled(scores: Tensor) -> bool:
    return scores.dtype is torch.float32 and scores.stride(-1) == 1 and operators.runs(scores)


def reference(scores: list[float]) -> int:
    """The definition, for one row."""
    return scores.index(max(scores))
