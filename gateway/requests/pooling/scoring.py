"""Pairs of texts to scores.

    a classifier with one label      a prompt for each pair; the label's logit, through a sigmoid
    a model that embeds              a prompt for each text; cosines of their embeddings

Other models refuse. If the request names a pooling, any model compares hidden states.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

from baton.core.errors import InvalidRequest
from baton.core.messages import Pooling
from baton.gateway.requests.completion_request import Prompt
from baton.gateway.requests.gateway import Gateway
from baton.gateway.requests.generations.completion_stream import Usage
from baton.gateway.requests.pooling.embedding import unit
from baton.gateway.requests.pooling.pairs import max_tokens_of, pair_prompts, text_prompts
from baton.gateway.requests.pooling.pooled import MAX_INPUTS, PoolingRequest, run_pooled
from baton.gateway.text.classifier import Classifier

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Side:
    """The first or the second texts of pairs."""

    texts: tuple[str, ...]
    field: str
    """The caller's name for it, for error messages."""
    is_list: bool

    def field_of(self, index: int) -> str:
        return f"{self.field}[{index}]" if self.is_list else self.field


@dataclass(frozen=True, slots=True, kw_only=True)
class ScoreRequest:
    """A score request as an API has read it, not yet checked."""

    first: Side
    """One text, paired with each of the second ones; or as many texts as those."""
    second: Side
    asked: PoolingRequest
    """Caller and options of the prompts; the pooling is decided here."""
    pooling: Pooling | None = None
    """The pooling of hidden states that the caller names."""
    instruction: str | None = None
    is_activated: bool = True
    truncate_prompt_tokens: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Scores:
    scores: list[float]
    """One score for each pair, in the order of the second texts."""
    usage: Usage


async def score(gateway: Gateway, order: ScoreRequest) -> Scores:
    """Raises InvalidRequest and RateLimited before anything runs, and what a run raises."""
    _check_sides(order.first, order.second)
    classifier = gateway.model.classifier
    if classifier is not None and order.pooling is None:
        return await _judged(gateway, order, classifier)
    return await _compared(gateway, order)


def _check_sides(first: Side, second: Side) -> None:
    for side in first, second:
        if not side.texts:
            raise InvalidRequest(f"{side.field} is empty; it needs a text", field=side.field)
        if len(side.texts) > MAX_INPUTS:
            message = f"{side.field} has {len(side.texts)} items; at most {MAX_INPUTS} can be"
            raise InvalidRequest(f"{message}: send several requests", field=side.field)
        for index, text in enumerate(side.texts):
            if not text:
                field = side.field_of(index)
                raise InvalidRequest(f"{field} is empty; give a text", field=field)
    if len(first.texts) not in (1, len(second.texts)):
        raise InvalidRequest(
            f"{first.field} has {len(first.texts)} texts and {second.field} {len(second.texts)}; "
            f"give one in {first.field}, or as many as in {second.field}",
            field=first.field,
        )


async def _judged(gateway: Gateway, order: ScoreRequest, classifier: Classifier) -> Scores:
    if (num := len(classifier.labels)) != 1:
        raise InvalidRequest(
            f"`{gateway.model.name}` is a classifier with {num} labels, and scores need one with "
            "a single label; use /v1/classify",
            field="model",
        )
    prompts = await pair_prompts(
        gateway,
        classifier,
        [
            (first, second, order.second.field_of(index))
            for index, (first, second) in enumerate(_pairs(order.first.texts, order.second.texts))
        ],
        instruction=order.instruction,
        max_tokens=max_tokens_of(gateway, order.truncate_prompt_tokens),
    )
    asked = replace(order.asked, pooling=Pooling.LOGITS, tokens=classifier.tokens)
    found = await run_pooled(gateway, prompts, asked)
    return Scores(
        scores=[
            classifier.score(logits, is_activated=order.is_activated) for logits in found.vectors
        ],
        usage=found.usage,
    )


async def _compared(gateway: Gateway, order: ScoreRequest) -> Scores:
    pooling = order.pooling or gateway.model.pooling.pooling
    if pooling is None:
        raise InvalidRequest(
            f"`{gateway.model.name}` is neither a reranker (config.json has no "
            "...ForSequenceClassification with one label, and no classifier_from_token) nor an "
            "embedding model (no Pooling in modules.json); set pooling to mean or last to compare "
            "its hidden states anyway",
            field="model",
        )
    if order.instruction is not None:
        raise InvalidRequest(
            "instruction is supported only by rerankers; put it into the query",
            field="instruction",
        )
    max_tokens = max_tokens_of(gateway, order.truncate_prompt_tokens)
    prompts: list[Prompt] = []
    for side in order.first, order.second:
        given = list(side.texts) if side.is_list else side.texts[0]
        prompts += await text_prompts(gateway, given, side.field, max_tokens=max_tokens)
    found = await run_pooled(gateway, tuple(prompts), replace(order.asked, pooling=pooling))
    units = [unit(list(vector)) for vector in found.vectors]
    num_first = len(order.first.texts)
    pairs = _pairs(units[:num_first], units[num_first:])
    return Scores(
        scores=[sum(a * b for a, b in zip(*pair, strict=True)) for pair in pairs],
        usage=found.usage,
    )


def _pairs(first: Sequence[T], second: Sequence[T]) -> list[tuple[T, T]]:
    """Pairs of 1 and N texts, or of N and N."""
    return list(zip(first if len(first) > 1 else list(first) * len(second), second, strict=True))
