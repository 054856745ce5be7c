"""A model folder's settings for classification, reranking and embeddings.

config.json          id2label, problem_type            a head for labels
                     classifier_from_token, method     tokens whose logits are the labels', as vLLM
                                                       has it; also is_original_qwen3_reranker
                     is_matryoshka, matryoshka_dimensions
modules.json         sentence-transformers': which modules the model is made of       optional
  .../config.json    of Pooling; of LogitScore: tokens whose logits are a score       optional
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import msgspec

from baton.core.errors import InvalidConfig
from baton.core.labels import labels_of
from baton.core.messages import Pooling
from baton.engine.models.config.description import unsupported, wrong

CLASSIFIER = "ForSequenceClassification"
TWO_WAY = "from_2_way_softmax"
METHODS = (TWO_WAY, "no_post_processing")
PROBLEM_TYPES = ("", "regression", "single_label_classification", "multi_label_classification")
ACTIVATIONS = ("Identity", "Sigmoid", "Tanh")
"""torch's names of the activations for a pair's logits."""
POOLING_MODES = {
    "pooling_mode_lasttoken": Pooling.LAST,
    "pooling_mode_mean_tokens": Pooling.MEAN,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class LabelTokens:
    """Tokens, by name or id, whose logits are the labels' logits."""

    tokens: tuple[str | int, ...]
    is_two_way: bool = False
    """Two tokens, no and yes, for one label: its logit is the second's minus the first's."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolingFiles:
    labels: tuple[str, ...] | None = None
    """The labels of a model with a head for them."""
    label_tokens: LabelTokens | None = None
    """The label tokens of a model that generates."""
    problem_type: str = ""
    pair_activation: str = ""
    """One of ACTIVATIONS; empty: the usual one."""
    is_original_qwen3_reranker: bool = False
    joins_pairs: bool = False
    """Whether two texts are concatenated without the tokenizer's separator."""
    pooling: Pooling | None = None
    """The authors' pooling of hidden states; None: not given."""
    is_matryoshka: bool | None = None
    """Whether embeddings may be cut to their first dimensions; None: not given."""
    matryoshka_dimensions: tuple[int, ...] = ()
    """Allowed numbers of dimensions; empty: any."""

    def judging_as(self, reranker: str) -> PoolingFiles:
        """The settings with `gateway.reranker` applied. Raises InvalidConfig."""
        if reranker == "auto":
            return self
        if self.labels is not None:
            raise InvalidConfig(
                f"gateway.reranker {reranker!r}: the model has a head for labels, and judges by "
                "that; leave it out"
            )
        return replace(
            self,
            label_tokens=LabelTokens(tokens=("no", "yes"), is_two_way=True),
            is_original_qwen3_reranker=True,
        )

    @classmethod
    def read(cls, folder: Path, config: Mapping[str, Any]) -> PoolingFiles:
        """Raises CheckpointError, naming the key."""
        names = config.get("architectures")
        is_classifier = isinstance(names, list) and any(str(n).endswith(CLASSIFIER) for n in names)
        tokens = _label_tokens(config)
        has_tokens = tokens is not None
        modules = dict(_modules(folder))
        logit_score = modules.get("LogitScore")
        if tokens is None and not is_classifier and logit_score is not None:
            tokens = _logit_score(logit_score)
        return cls(
            labels=labels_of(config) if is_classifier and tokens is None else None,
            label_tokens=tokens,
            problem_type=_problem_type(config),
            pair_activation=_activation(config),
            is_original_qwen3_reranker=config.get("is_original_qwen3_reranker") is True,
            joins_pairs=config.get("use_sep_token", not has_tokens) is False,
            pooling=_pooling(modules.get("Pooling", {})),
            is_matryoshka=_optional_flag(config, "is_matryoshka"),
            matryoshka_dimensions=_counts(config, "matryoshka_dimensions"),
        )


def _label_tokens(config: Mapping[str, Any]) -> LabelTokens | None:
    tokens = config.get("classifier_from_token")
    if not tokens:
        return None
    if not isinstance(tokens, list) or not all(isinstance(token, str | int) for token in tokens):
        raise wrong(f"`classifier_from_token` must be a list of tokens, not {tokens!r}")
    default = TWO_WAY if len(tokens) == 2 else METHODS[1]
    method = config.get("method") or default
    if method not in METHODS or (method == TWO_WAY and len(tokens) != 2):
        raise unsupported(
            f"`method` is {method!r} for {len(tokens)} tokens; supported are "
            f"{TWO_WAY!r} of two and {METHODS[1]!r}"
        )
    return LabelTokens(tokens=tuple(tokens), is_two_way=method == TWO_WAY)


def _logit_score(config: Mapping[str, Any]) -> LabelTokens | None:
    yes, no = config.get("true_token_id"), config.get("false_token_id")
    if not isinstance(yes, int):
        return None
    if isinstance(no, int):
        return LabelTokens(tokens=(no, yes), is_two_way=True)
    return LabelTokens(tokens=(yes,))


def _modules(folder: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """The configurations of sentence-transformers' modules, by the name of their class."""
    try:
        modules = msgspec.json.decode((folder / "modules.json").read_bytes(), type=list[Any])
    except (OSError, msgspec.DecodeError):
        return
    for module in modules:
        kind, path = (str(module.get(key) or "") for key in ("type", "path"))
        yield kind.rpartition(".")[2], _config_of(folder, path)


def _config_of(folder: Path, path: str) -> dict[str, Any]:
    """A module's config; empty if it has none, or its folder was not fetched."""
    if Path(path).name != path:
        return {}
    try:
        data = (folder / path / "config.json").read_bytes()
        return msgspec.json.decode(data, type=dict[str, Any])
    except (OSError, msgspec.DecodeError):
        return {}


def _pooling(config: Mapping[str, Any]) -> Pooling | None:
    modes = [key for key, value in config.items() if key in POOLING_MODES and value is True]
    mode = config.get("pooling_mode")
    if not modes and isinstance(mode, str):
        modes = [f"pooling_mode_{mode}", f"pooling_mode_{mode}_tokens"]
    found = [POOLING_MODES[each] for each in modes if each in POOLING_MODES]
    return found[0] if len(found) == 1 else None


def _problem_type(config: Mapping[str, Any]) -> str:
    found = config.get("problem_type") or ""
    if found not in PROBLEM_TYPES:
        known = ", ".join(PROBLEM_TYPES[1:])
        raise unsupported(f"`problem_type` is {found!r}; supported are {known}")
    return str(found)


def _activation(config: Mapping[str, Any]) -> str:
    """The pair activation, in the current or an older format of sentence-transformers."""
    described = config.get("sentence_transformers")
    now = described.get("activation_fn") if isinstance(described, Mapping) else None
    found = str(now or config.get("sbert_ce_default_activation_function") or "")
    name = found.rpartition(".")[2]
    if name and name not in ACTIVATIONS:
        raise unsupported(
            f"the activation of pairs is {found!r}; supported are " + ", ".join(ACTIVATIONS)
        )
    return name


def _optional_flag(config: Mapping[str, Any], key: str) -> bool | None:
    value = config.get(key)
    return value if isinstance(value, bool) else None


def _counts(config: Mapping[str, Any], key: str) -> tuple[int, ...]:
    values = config.get(key)
    return tuple(v for v in values if isinstance(v, int)) if isinstance(values, list) else ()
