"""The token of the largest score, the lowest of several.

On a CPU one pass over the scores finds it, and sees whether all of them are finite. Where torch has
to do that,

    scores [S, V] --largest of each chunk--> [S, V / C] --first largest--> chunk --again--> token

for the largest of a chunk is found with vector instructions, which its place is not.

S rows, V vocabulary, C tokens of a chunk.
"""

from __future__ import annotations

import torch
from torch import Tensor

from baton.kernels.cpu import operators
from baton.kernels.sampling import best_token_cpu as cpu

CHUNK = 128
MIN_VOCAB_SIZE = 64 * CHUNK
"""Below it one pass is as fast."""


def best_token(scores: Tensor) -> Tensor:
    """[S, V] -> [S]. A row with NaN in it gives any token."""
    if _is_compiled(scores):
        return cpu.best_token(scores)[0]
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


def best_finite_token(scores: Tensor) -> tuple[Tensor, Tensor]:
    """[S, V] -> the best token [S] of each row, and whether all of its scores are finite [S]."""
    if _is_compiled(scores):
        return cpu.best_token(scores)
    if scores.is_cuda and scores.dtype is torch.float32 and scores.stride(-1) == 1:
        from baton.kernels.sampling.best_token_gpu import best_finite_token as on_gpu

        return on_gpu(scores)
    # NaN wins in both, so these two numbers a row tell of all of it.
    return best_token(scores), scores.amax(-1).isfinite() & scores.amin(-1).isfinite()


def best_finite_on_host(scores: Tensor) -> tuple[list[int], list[bool]] | None:
    """The same as numbers, if that is quicker than tensors."""
    return cpu.best_token_on_host(scores) if _is_compiled(scores) else None


def _is_compiled(scores: Tensor) -> bool:
    return scores.dtype is torch.float32 and scores.stride(-1) == 1 and operators.runs(scores)


def reference(scores: list[float]) -> int:
    """The definition, for one row."""
    return scores.index(max(scores))
