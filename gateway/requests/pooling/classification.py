"""Texts to the probabilities of a classifier's labels."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from baton.core.errors import InvalidRequest
from baton.core.messages import Pooling
from baton.gateway.requests.completion_request import Prompt
from baton.gateway.requests.gateway import Gateway
from baton.gateway.requests.generations.completion_stream import Usage
from baton.gateway.requests.pooling.pooled import PoolingRequest, run_pooled
from baton.gateway.text.classifier import Classifier


@dataclass(frozen=True, slots=True, kw_only=True)
class Classes:
    labels: Sequence[str]
    probabilities: list[list[float]]
    """Probabilities of each input, in the order of the labels; logits if those were asked for."""
    usage: Usage


def require_classifier(gateway: Gateway) -> Classifier:
    """Raises InvalidRequest."""
    model = gateway.model
    if model.classifier is None:
        raise InvalidRequest(
            f"`{model.name}` has no labels: config.json names no ...ForSequenceClassification, and "
            "no classifier_from_token",
            field="model",
        )
    return model.classifier


async def classify(
    gateway: Gateway, inputs: tuple[Prompt, ...], asked: PoolingRequest, *, is_activated: bool
) -> Classes:
    """Raises InvalidRequest and RateLimited before anything runs, and what a run raises."""
    classifier = require_classifier(gateway)
    order = replace(asked, pooling=Pooling.LOGITS, tokens=classifier.tokens)
    found = await run_pooled(gateway, inputs, order)
    return Classes(
        labels=classifier.labels,
        probabilities=[
            classifier.probabilities(logits, is_activated=is_activated) for logits in found.vectors
        ],
        usage=found.usage,
    )
