"""Logits to the probabilities of labels, and to the score of a pair of texts.

                                     labels                  a pair (one label)
one label, or one of several         sigmoid, or softmax     sigmoid, or the authors' choice
several labels (multi-label)         sigmoid                 the same
regression                           as they are             the same
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from baton.core.errors import CheckpointError
from baton.gateway.text.chat_template import ChatTemplate
from baton.gateway.text.model_files import DEFAULT, ModelFiles
from baton.gateway.text.pooling_files import ACTIVATIONS, LabelTokens
from baton.gateway.text.tokenizer import TextTokenizer

Activation = Callable[[Sequence[float]], list[float]]

QWEN3_RERANKER = """\
<|im_start|>system
Judge whether the Document meets the requirements based on the Query and the Instruct provided. \
Note that the answer can only be "yes" or "no".<|im_end|>
<|im_start|>user
<Instruct>: {{ instruction | default(\
'Given a web search query, retrieve relevant passages that answer the query') }}
<Query>: {{ messages[-2].content }}
<Document>: {{ messages[-1].content }}<|im_end|>
<|im_start|>assistant
<think>

</think>

{{ '' }}"""
"""Qwen's own prompt for its rerankers: other words give other scores."""


def as_they_are(logits: Sequence[float]) -> list[float]:
    return list(logits)


def sigmoid(logits: Sequence[float]) -> list[float]:
    """The sigmoid of each logit by itself."""
    return [0.5 * (1 + math.tanh(0.5 * logit)) for logit in logits]


def softmax(logits: Sequence[float]) -> list[float]:
    highest = max(logits)
    weights = [math.exp(logit - highest) for logit in logits]
    total = sum(weights)
    return [weight / total for weight in weights]


def tanh(logits: Sequence[float]) -> list[float]:
    return [math.tanh(logit) for logit in logits]


BY_NAME: Mapping[str, Activation] = dict(
    zip(ACTIVATIONS, (as_they_are, sigmoid, tanh), strict=True)
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Classifier:
    labels: tuple[str, ...]
    tokens: tuple[int, ...] = ()
    """Tokens whose logits are the labels' logits; empty: the model has a classifier head."""
    is_two_way: bool = False
    """See LabelTokens."""
    label_activation: Activation
    pair_activation: Activation
    pair_template: ChatTemplate | None = None
    """A template for messages with the roles query and document, and optionally system."""
    joins_pairs: bool = False
    """Without a template: see PoolingFiles."""

    def probabilities(self, logits: Sequence[float], *, is_activated: bool = True) -> list[float]:
        """Probabilities of the labels, in their order; logits if not `is_activated`."""
        given = self._of_labels(logits)
        return self.label_activation(given) if is_activated else given

    def score(self, logits: Sequence[float], *, is_activated: bool = True) -> float:
        """The score of a pair; there is one label."""
        given = self._of_labels(logits)
        return (self.pair_activation(given) if is_activated else given)[0]

    def _of_labels(self, logits: Sequence[float]) -> list[float]:
        return [logits[1] - logits[0]] if self.is_two_way else list(logits)

    @classmethod
    def of(cls, files: ModelFiles, tokenizer: TextTokenizer) -> Classifier | None:
        """The classifier; None for a model without labels. Raises CheckpointError."""
        pooling = files.pooling
        labels, by_token = pooling.labels, pooling.label_tokens
        if labels is None and by_token is None:
            return None
        tokens: tuple[int, ...] = ()
        if by_token is not None:
            tokens = _token_ids(by_token, tokenizer, files.vocab_size)
            num = 1 if by_token.is_two_way else len(tokens)
            labels = tuple(f"LABEL_{i}" for i in range(num))
        assert labels is not None
        return cls(
            labels=labels,
            tokens=tokens,
            is_two_way=by_token is not None and by_token.is_two_way,
            label_activation=_label_activation(pooling.problem_type, len(labels)),
            pair_activation=_pair_activation(pooling.pair_activation, len(labels)),
            pair_template=_pair_template(files),
            joins_pairs=pooling.joins_pairs,
        )


def _token_ids(given: LabelTokens, tokenizer: TextTokenizer, vocab_size: int) -> tuple[int, ...]:
    found = [token if isinstance(token, int) else tokenizer.id_of(token) for token in given.tokens]
    for name, token in zip(given.tokens, found, strict=True):
        if token is None or not 0 <= token < vocab_size:
            raise CheckpointError(f"the label token `{name}` is not in the model's vocabulary")
    return tuple(token for token in found if token is not None)


def _label_activation(problem_type: str, num_labels: int) -> Activation:
    if problem_type == "regression":
        return as_they_are
    is_multi = problem_type == "multi_label_classification"
    return sigmoid if is_multi or num_labels == 1 else softmax


def _pair_activation(name: str, num_labels: int) -> Activation:
    return BY_NAME[name] if name else _label_activation("", num_labels)


def _pair_template(files: ModelFiles) -> ChatTemplate | None:
    """The model's template, if it has the roles of a pair; other templates are for chats."""
    source = files.chat_templates.get(DEFAULT)
    if source is None or not ChatTemplate.takes_pairs(source):
        source = QWEN3_RERANKER if files.pooling.is_original_qwen3_reranker else None
    return None if source is None else ChatTemplate(source, files.special_tokens)
