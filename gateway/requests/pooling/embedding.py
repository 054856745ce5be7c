"""Prompts to embeddings, for HTTP and gRPC."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from baton.core.errors import InvalidRequest
from baton.core.messages import Pooling
from baton.gateway.requests.completion_request import Prompt
from baton.gateway.requests.gateway import Gateway
from baton.gateway.requests.generations.completion_stream import Usage
from baton.gateway.requests.pooling.pooled import PoolingRequest, run_pooled


@dataclass(frozen=True, slots=True, kw_only=True)
class EmbeddingRequest(PoolingRequest):
    """An embedding request as an API has read it, not yet checked."""

    inputs: tuple[Prompt, ...]
    is_normalized: bool = True
    dimensions: int | None = None
    """Keep only the first dimensions, cut before normalising; None: all."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Embeddings:
    vectors: list[list[float]]
    """One vector for each input, in the order of the inputs."""
    usage: Usage


def pooling_of(gateway: Gateway, asked: str | None) -> Pooling:
    """The pooling asked for, else the model authors', else the mean."""
    return Pooling(asked) if asked else gateway.model.pooling.pooling or Pooling.MEAN


async def embed(gateway: Gateway, order: EmbeddingRequest) -> Embeddings:
    """Raises InvalidRequest and RateLimited before anything runs, and what a run raises."""
    if order.dimensions is not None:
        _check_dimensions(gateway, order.dimensions)
    found = await run_pooled(gateway, order.inputs, order)
    return Embeddings(vectors=[fitted(v, order) for v in found.vectors], usage=found.usage)


def _check_dimensions(gateway: Gateway, num: int) -> None:
    """Raises InvalidRequest, also if the model's embeddings may not be cut."""
    if num < 1:
        raise InvalidRequest(f"dimensions must be at least 1; got {num}", field="dimensions")
    model = gateway.model
    if model.pooling.is_matryoshka is False:
        raise InvalidRequest(
            f"`{model.name}`'s embeddings cannot be shortened (config.json: is_matryoshka is "
            "false); leave dimensions out",
            field="dimensions",
        )
    known = model.pooling.matryoshka_dimensions
    if known and num not in known:
        raise InvalidRequest(
            f"dimensions must be one of {', '.join(map(str, known))}; got {num}",
            field="dimensions",
        )


def fitted(embedding: Sequence[float], order: EmbeddingRequest) -> list[float]:
    """The embedding, cut and normalised as asked for."""
    num = order.dimensions
    if num is not None and num > len(embedding):
        raise InvalidRequest(
            f"dimensions must be at most {len(embedding)}, the model's own; got {num}",
            field="dimensions",
        )
    vector = list(embedding[:num])
    return unit(vector) if order.is_normalized else vector


def unit(vector: list[float]) -> list[float]:
    """The vector scaled to length 1; a zero vector as it is."""
    length = math.hypot(*vector)
    return [value / length for value in vector] if length else vector
