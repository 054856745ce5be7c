"""LoRA adapters are found and fetched as models are, but for what of them is needed."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.fake_hub import FakeHub, ask_only, fake_hub
from tests.file_server import FileServer
from tests.platform.models.fetched_files import FILES, contents
from tests.platform.models.test_lent_models import OtherNode

from baton.core.errors import CheckpointError, ModelUnreachable
from baton.platform.config.deployment import DeploymentConfig, parse_config
from baton.platform.models.adapter_folders import find_adapters, folders_here, with_adapters
from baton.platform.models.listing import choose_files
from baton.platform.models.model_folder import find_model
from baton.platform.models.model_listing import describe

REPO = "org/sql-lora"
ADAPTER = {
    "adapter_config.json": b'{"base_model_name_or_path": "org/base"}',
    "adapter_model.safetensors": b"s" * 5000,
}
BESIDE = {
    "tokenizer.json": b"{}",
    "README.md": b"# never needed",
    "adapter_model.bin": b"b" * 5000,
    "training_args.bin": b"pickled",
    "checkpoint-10/adapter_config.json": b"{}",
}


def configured(**adapters: object) -> DeploymentConfig:
    return parse_config({"adapters": {name: str(where) for name, where in adapters.items()}})


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeHub]:
    with fake_hub(REPO, {**ADAPTER, **BESIDE}) as hub:
        ask_only(hub, tmp_path, monkeypatch)
        yield hub


@pytest.fixture
def own(tmp_path: Path) -> Path:
    folder = tmp_path / "own"
    folder.mkdir()
    for name, data in ADAPTER.items():
        (folder / name).write_bytes(data)
    return folder


def test_an_adapter_of_the_hub_is_fetched_once_without_what_lies_beside_it(
    hub: FakeHub, own: Path
) -> None:
    config = configured(sql=REPO, own=own)

    found = find_adapters(config)

    assert contents(found["sql"]) == ADAPTER
    assert found["own"] == own
    assert find_adapters(config) == found
    assert sorted(hub.fetched) == sorted(ADAPTER)
    hub.status = 503  # what was fetched before is used
    assert find_adapters(config) == found

    resolved = with_adapters(config)
    assert folders_here(resolved) == found
    assert folders_here(config) == {"own": own}


def test_pickled_weights_are_taken_of_the_hub_alone(
    hub: FakeHub, web: FileServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    del hub.files["adapter_model.safetensors"]
    web.files |= {f"a/{name}": data for name, data in hub.files.items()}

    assert {*contents(find_adapters(configured(sql=REPO))["sql"])} == {
        "adapter_config.json",
        "adapter_model.bin",
    }
    with pytest.raises(CheckpointError, match=r"adapters\.sql: .* holds neither adapter_model\.s"):
        find_adapters(configured(sql=f"{web.url}/a"))


def test_an_adapter_of_a_url_comes_from_another_node_if_one_has_it(
    web: FileServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    web.files |= {f"a/{name}": data for name, data in {**ADAPTER, **BESIDE}.items()}
    config, other = configured(sql=f"{web.url}/a"), OtherNode(tmp_path / "other")
    with monkeypatch.context() as patch:
        patch.setenv("BATON_MODEL_CACHE", str(tmp_path / "other"))
        assert contents(find_adapters(config)["sql"]) == ADAPTER
    assert sorted(web.fetched()) == [f"a/{name}" for name in sorted(ADAPTER)]
    web.asked.clear()

    assert contents(find_adapters(config, peers=other)["sql"]) == ADAPTER
    assert (web.fetched(), other.num_lent) == ([], 2)


@pytest.mark.usefixtures("cache")
def test_a_folder_of_another_node_is_lent(own: Path, tmp_path: Path) -> None:
    class Home(OtherNode):
        """The node that the folder is on: this machine has it under another name."""

        def having(self, model: str, version: str, *, is_lent: bool = False):  # type: ignore[no-untyped-def]
            return super().having(str(own), version, is_lent=is_lent)

    found = find_adapters(configured(sql="/far/sql"), peers=Home(tmp_path / "other"))

    assert contents(found["sql"]) == ADAPTER


def test_what_is_missing_or_no_adapter_is_told_with_the_adapters_name(
    web: FileServer, tmp_path: Path
) -> None:
    (tmp_path / "empty").mkdir()
    for where, complaint in (
        ("/nowhere", "no folder /nowhere; give an adapter's folder"),
        (str(tmp_path / "empty"), "has no adapter_config.json"),
        (f"{web.url}/m", "has no config.json|has no adapter_config.json"),
    ):
        with pytest.raises(CheckpointError, match=rf"^adapters\.sql: .*({complaint})"):
            find_adapters(configured(sql=where))
    web.is_down = True
    with pytest.raises(ModelUnreachable, match=r"^adapters\.sql: "):
        find_adapters(configured(sql=f"{web.url}/a"))


@pytest.mark.usefixtures("hub")
def test_an_adapter_is_no_model_and_says_how_it_is_served(own: Path) -> None:
    with pytest.raises(CheckpointError, match=f"LoRA adapter .*--adapter NAME={REPO}"):
        find_model(REPO)
    assert describe(REPO, own).problem == (
        f"a LoRA adapter of org/base; serve that with --adapter NAME={REPO}"
    )


def test_a_repository_that_is_a_model_and_an_adapter_has_both() -> None:
    names = [*FILES, *ADAPTER, "README.md"]

    assert {*choose_files(names, wants_weights=True)} == {*FILES, *ADAPTER}
