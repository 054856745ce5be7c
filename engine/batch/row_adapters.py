"""The adapter of each row of a pass."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True, slots=True, eq=False)
class RowAdapters:
    """0: the base model's; i + 1: the i-th adapter of the model's `ModelInfo.adapters`."""

    tokens: Tensor
    """[T] int64"""
    outputs: Tensor
    """[S] int64, of the tokens whose outputs are wanted."""


def adapter_numbers(
    numbers: Sequence[int], lengths: Sequence[int], output_rows: Sequence[int]
) -> tuple[array[int], array[int]]:
    """The numbers of all tokens and of the output rows, from those of chunks of these `lengths`."""
    tokens = array("q")
    for number, length in zip(numbers, lengths, strict=True):
        tokens.extend([number] * length)
    return tokens, array("q", [tokens[row] for row in output_rows])
