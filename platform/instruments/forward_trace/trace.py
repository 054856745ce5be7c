"""The recorded forward pass over one prompt.

    tokens -> embedding -> [norm -> qkv -> attention -> out -> norm -> feed-forward] x L -> head
              a stage       a stage each, with its shapes, FLOPs and bytes               top tokens

T tokens of the prompt, N heads, L layers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from baton.platform.instruments.pass_cost import Work


@dataclass(frozen=True, slots=True)
class TracedToken:
    token: int
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    name: str
    layer: int | None
    """None before the first and after the last."""
    shape_in: tuple[int, ...]
    shape_out: tuple[int, ...]
    work: Work
    size: float
    """Root mean square of the output."""

    @property
    def is_reshaping(self) -> bool:
        return self.shape_in != self.shape_out


@dataclass(frozen=True, slots=True)
class Guess:
    token: TracedToken
    probability: float


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerTrace:
    heat: Sequence[Sequence[float]]
    """[N][T]: attention weights of the last token, by head; without a sink's share."""
    guesses: Sequence[Guess]
    """The next token if this were the last layer (logit lens, nostalgebraist 2020)."""
    experts: Sequence[Sequence[tuple[int, float]]] = ()
    """The experts of each token, with their weights. Empty in a dense layer."""

    @property
    def mean_heat(self) -> list[float]:
        """[T], over the heads."""
        return [sum(column) / len(self.heat) for column in zip(*self.heat, strict=True)]


@dataclass(frozen=True, slots=True, kw_only=True)
class ForwardTrace:
    model: str
    architecture: str
    dtype: str
    device: str
    tokens: Sequence[TracedToken]
    stages: Sequence[Stage]
    layers: Sequence[LayerTrace]
    guesses: Sequence[Guess]
    """The guesses of the whole model."""
    guesses_after: Sequence[Guess] = ()
    """The MTP head's guesses of the token after the most probable next one."""

    @property
    def work(self) -> Work:
        return sum((stage.work for stage in self.stages), start=Work())

    def stages_of(self, layer: int | None) -> list[Stage]:
        return [stage for stage in self.stages if stage.layer == layer]
