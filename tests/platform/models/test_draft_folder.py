from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from baton.core.errors import CheckpointError, InvalidConfig
from baton.platform.config.deployment import DeploymentConfig, override
from baton.platform.models.draft_folder import with_draft
from baton.platform.models.model_folder import find_model

DEMO = find_model("demo")


def drafting(**speculation: Any) -> DeploymentConfig:
    changes = {"model": str(DEMO), "decode.speculation": {"method": "draft", **speculation}}
    return override(DeploymentConfig(), changes)


def swapped(folder: Path) -> Path:
    """As the demo, but that two tokens have each other's numbers."""
    tokenizer = json.loads((DEMO / "tokenizer.json").read_text())
    vocabulary = tokenizer["model"]["vocab"]
    first, second = [token for token, number in vocabulary.items() if number in (300, 301)]
    vocabulary[first], vocabulary[second] = vocabulary[second], vocabulary[first]
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
    (folder / "config.json").write_text("{}")
    return folder


def test_a_draft_model_is_named_by_its_folder_before_anything_starts() -> None:
    found = with_draft(drafting(model="draft"), DEMO)

    assert found.decode.speculation.model == str(find_model("draft"))
    assert with_draft(DeploymentConfig(), DEMO) == DeploymentConfig()


def test_a_draft_model_whose_tokens_are_others_is_refused_although_they_are_as_many(
    tmp_path: Path,
) -> None:
    with pytest.raises(InvalidConfig, match=r"its token 300 is .* of the same tokenizer"):
        with_draft(drafting(model=str(swapped(tmp_path))), DEMO)


def test_a_draft_model_that_is_not_there_or_not_named_is_refused_with_the_remedy() -> None:
    with pytest.raises(CheckpointError, match="give a model folder"):
        with_draft(drafting(model="/nowhere"), DEMO)
    with pytest.raises(InvalidConfig, match="--draft-model"):
        with_draft(drafting(), DEMO)
