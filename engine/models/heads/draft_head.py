"""The interface of draft heads that predict tokens one after the other.

    features of token t, token t + 1  ->  out[t]  ->  logits of token t + 2
                                            |
                                            +->  stands for the features of token t + 1, and so on

It has its own KV, with a slot per pair. A head with a mask can predict several at once:

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
"""Ends that a head may share with its model."""


class Mask(NamedTuple):
    """The placeholder for an unknown pair."""

    token: int
    row: Tensor  # [1, D] joined features


class FeatureReader(Protocol):
    """The part of a head that reads a model, which is enough to keep features for heads
    elsewhere."""

    width: int
    """D"""
    taps: tuple[int, ...]
    """Layers whose concatenated inputs are its features; empty: the model's outputs are."""

    features: str
    """The kind of joined features: see `DraftFeatures`."""

    def joined(self, features: Tensor) -> Tensor:
        """[T, F] -> [T, D], in memory of its own."""


class DraftHead(FeatureReader, Protocol):
    def layout(self, of_model: KvLayout) -> KvLayout:
        """The layout of the head's KV."""

    def __call__(
        self,
        hidden: Tensor,
        next_tokens: Tensor,
        sequences: Sequences,
        caches: Sequence[LayerCache],
    ) -> Tensor:
        """Joined features, or their stand-ins [T, D], and the following tokens [T] -> [T, D]"""

    def logits(self, out: Tensor) -> Tensor:
        """[S, D] -> float32 [S, V]"""

    def mask(self) -> Mask | None:
        """None if it predicts token by token."""
