from __future__ import annotations

from pathlib import Path

import pytest

from baton.core.errors import CheckpointError
from baton.platform.config.deployment import DEMO_MODEL
from baton.platform.models.model_folder import find_model


def test_a_model_folder_is_taken_as_it_is(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")

    assert find_model(str(tmp_path)) == tmp_path.resolve()


def test_a_folder_in_the_home_directory_may_be_written_with_a_tilde(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "config.json").write_text("{}")

    assert find_model("~") == tmp_path.resolve()


def test_the_demo_model_comes_with_the_checkout() -> None:
    folder = find_model(DEMO_MODEL)

    assert (folder / "config.json").is_file()
    assert (folder / "tokenizer.json").is_file()


def test_a_folder_without_a_config_is_no_model(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"has no config\.json"):
        find_model(str(tmp_path))


@pytest.mark.parametrize("model", ["/nowhere", "./nowhere", "~/nowhere", "nowhere", "a/b/c"])
def test_what_is_neither_a_folder_nor_an_id_is_refused_with_what_to_give(model: str) -> None:
    with pytest.raises(CheckpointError, match="give a model folder or a Hugging Face id"):
        find_model(model)
