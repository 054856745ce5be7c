"""What a head is that guesses a model's tokens one after the other.

    features of token t, token t + 1  ->  out[t]  ->  logits of token t + 2
                                            |
                                            +->  stands for the features of token t + 1, and so on

It has KV of its own, a place for each such pair. One with a mask can guess several at once:

    pair of token t, mask, mask   ->  logits of tokens t + 2, t + 3, t + 4

T tokens, S rows whose logits are wanted, F width of features, D of the model, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, NamedTuple, Protocol

from torch import Tensor

from baton.core.kv_layout import KvLayout
from baton.kernels.attention.layer_kv import LayerCache
from baton.kernels.paging.sequences import Sequences

End = Literal["embed", "head"]
"""What a head may have of its model."""


class Mask(NamedTuple):
    """What stands for a pair that is not known yet."""

    token: int
    row: Tensor  # [1, D] joined features


class FeatureReader(Protocol):
    """What a head reads of a model, by itself: enough for who keeps it for the heads of others."""

    width: int
    """D"""
    taps: tuple[int, ...]
    """The layers whose inputs, side by side, are its features; if there are none, what the model
    gives is."""

    features: str
    """The kind of its joined features: see `DraftFeatures`."""

    def joined(self, features: Tensor) -> Tensor:
        """[T, F] -> [T, D], in memory of its own."""


class DraftHead(FeatureReader, Protocol):
    def layout(self, of_model: KvLayout) -> KvLayout:
        """The layout of its own KV."""

    def __call__(
        self,
        hidden: Tensor,
        next_tokens: Tensor,
        sequences: Sequences,
        caches: Sequence[LayerCache],
    ) -> Tensor:
        """Joined features, or what stands for them [T, D], and the tokens behind [T] -> [T, D]"""

    def logits(self, out: Tensor) -> Tensor:
        """[S, D] -> float32 [S, V]"""

    def mask(self) -> Mask | None:
        """None if it guesses token by token."""
