"""Reads the JSON files of a model folder, without torch."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

from baton.core.errors import CheckpointError

CLASSIFIER_FROM_TOKEN = "classifier_from_token"
"""vLLM's key for the tokens whose logits are those of the labels."""
CLASSIFIER, GENERATOR = "ForSequenceClassification", "ForCausalLM"
"""Suffixes of architecture names."""


def wrong(reason: str) -> CheckpointError:
    """The error for a `config.json` that is invalid for any model."""
    return CheckpointError(f"config.json: {reason}; correct it, or fetch the model again")


def unsupported(reason: str) -> CheckpointError:
    """The error for a `config.json` of a model that is not implemented."""
    return CheckpointError(f"config.json: {reason}; choose another model")


def read_json(path: Path) -> dict[str, object]:
    """Raises CheckpointError if there is no such file or it holds no JSON object."""
    try:
        value = json.loads(path.read_bytes())
    except FileNotFoundError:
        raise CheckpointError(
            f"{path} does not exist; give a model's folder in Hugging Face's layout"
        ) from None
    except (OSError, ValueError) as error:
        raise CheckpointError(
            f"{path} cannot be read as JSON: {error}; fetch the model again"
        ) from error
    if not isinstance(value, dict):
        raise CheckpointError(f"{path} holds no JSON object; fetch the model again")
    return value


def architecture_of(raw: Mapping[str, object]) -> str:
    """The architecture that config.json names; for a classifier made of some rows of a language
    model's head, that of the language model."""
    match raw.get("architectures"):
        case [str(architecture)]:
            if raw.get(CLASSIFIER_FROM_TOKEN):
                return architecture.replace(CLASSIFIER, GENERATOR)
            return architecture
        case other:
            raise wrong(f"`architectures` must name one architecture, not {other!r}")
