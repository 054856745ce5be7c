"""Hugging Face ids, against a hub on loopback."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from threading import Lock

import pytest
from tests.fake_hub import COMMIT, FakeHub, ask_only, fake_hub

from baton.core.errors import CheckpointError
from baton.platform.models.listing import choose_files
from baton.platform.models.model_folder import find_model

REPO = "org/name"
FILES = {
    "config.json": b"{}",
    "tokenizer.json": b'{"a": 1}',
    "README.md": b"# never needed",
    "model.safetensors": b"s" * 5000,
    "pytorch_model.bin": b"b" * 5000,
    "onnx/config.json": b"{}",
    "additional_chat_templates/tool_use.jinja": b"{{ tools }}",
    "additional_chat_templates/deeper/b.jinja": b"{{ tools }}",
}
NEEDED = {
    *("config.json", "tokenizer.json", "model.safetensors"),
    "additional_chat_templates/tool_use.jinja",
}


class Report:
    def __init__(self) -> None:
        self.total: dict[str, int] = {}
        self.done: dict[str, int] = {}
        self._lock = Lock()

    def begin(self, file: str, num_bytes: int) -> None:
        self.total[file], self.done[file] = num_bytes, 0

    def advance(self, file: str, num_bytes: int) -> None:
        with self._lock:
            self.done[file] += num_bytes

    def wait(self) -> None: ...


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeHub]:
    with fake_hub(REPO, dict(FILES)) as hub:
        ask_only(hub, tmp_path, monkeypatch)
        yield hub


def go_offline(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)


def files_of(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}


def complaint(model: str) -> str:
    with pytest.raises(CheckpointError) as refusal:
        find_model(model)
    assert "\n" not in str(refusal.value)
    return str(refusal.value)


def test_what_is_needed_is_downloaded_once_and_reported_in_bytes(
    hub: FakeHub, capsys: pytest.CaptureFixture[str]
) -> None:
    report, second = Report(), Report()

    folder = find_model(REPO, report=report)
    again = find_model(REPO, report=second)

    assert again == folder
    assert files_of(folder) == NEEDED
    assert (folder / "model.safetensors").read_bytes() == FILES["model.safetensors"]
    assert sorted(hub.fetched) == sorted(NEEDED)
    assert report.done == report.total == {name: len(FILES[name]) for name in NEEDED}
    assert second.total == {}
    assert capsys.readouterr().err == ""  # nothing is drawn but by who is reported to


def test_a_bin_is_taken_where_there_are_no_safetensors(hub: FakeHub) -> None:
    del hub.files["model.safetensors"]

    assert (find_model(REPO) / "pytorch_model.bin").read_bytes() == FILES["pytorch_model.bin"]


def test_a_revision_may_be_named_and_must_exist(hub: FakeHub) -> None:
    assert find_model(f"{REPO}@v1").name == COMMIT
    assert "org/name has no revision v2" in complaint(f"{REPO}@v2")


def test_dummy_weights_need_no_download(hub: FakeHub) -> None:
    folder = find_model(REPO, wants_weights=False)

    assert files_of(folder) == NEEDED - {"model.safetensors"}


@pytest.mark.parametrize("trouble", ["offline", "down", "gone"])
def test_a_cached_model_is_served_without_the_hub(
    hub: FakeHub, trouble: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, tagged = find_model(REPO), find_model(f"{REPO}@v1")

    if trouble == "offline":
        go_offline(monkeypatch)
    elif trouble == "down":
        monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", "http://127.0.0.1:1")
    else:
        hub.status, hub.error_code = 401, "RepoNotFound"

    assert find_model(REPO) == folder
    assert find_model(f"{REPO}@v1") == tagged


def test_what_other_tools_have_brought_here_is_not_fetched_again(
    hub: FakeHub, tmp_path: Path
) -> None:
    from huggingface_hub import snapshot_download

    theirs = Path(snapshot_download(REPO, allow_patterns=sorted(NEEDED)))
    hub.fetched.clear()

    assert find_model(f"hf://{REPO}") == theirs
    assert hub.fetched == []

    (theirs / "model.safetensors").unlink()
    assert find_model(REPO).is_relative_to(tmp_path / "cache")
    assert sorted(hub.fetched) == sorted(NEEDED)


def test_bytes_that_are_not_what_the_hub_says_are_refused(hub: FakeHub) -> None:
    hub.wrong = {"model.safetensors": b"?" * 5000}

    assert "git:" in complaint(REPO) and "is promised" in complaint(REPO)


@pytest.mark.parametrize("is_cut", [True, False])
def test_half_a_model_in_the_cache_is_none(
    hub: FakeHub, is_cut: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = find_model(REPO)
    (folder / "model.safetensors").unlink()
    if is_cut:
        weight_map = {"a": "model-1-of-2.safetensors", "b": "model-2-of-2.safetensors"}
        index = json.dumps({"weight_map": weight_map})
        (folder / "model.safetensors.index.json").write_text(index)
        (folder / "model-1-of-2.safetensors").write_bytes(b"")
    go_offline(monkeypatch)

    assert "not, or not all, in the cache" in complaint(REPO)
    assert find_model(REPO, wants_weights=False) == folder


def test_what_is_not_cached_is_refused_by_name_with_what_to_do(
    hub: FakeHub, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert "nobody/nothing is no local folder, and http://127.0.0.1" in complaint("nobody/nothing")

    hub.status, hub.error_code = 403, "GatedRepo"
    assert "org/name is gated; accept its terms at" in complaint(REPO)

    hub.status, hub.error_code = 400, ""
    assert "did not answer" in complaint(REPO)

    go_offline(monkeypatch)
    assert "org/name is no local folder and not, or not all, in the cache" in complaint(REPO)
    assert "HF_HUB_OFFLINE is set; unset it" in complaint(REPO)


def test_a_repository_without_weights_is_refused(hub: FakeHub) -> None:
    hub.files = {"config.json": b"{}", "model.gguf": b""}

    assert "holds neither model.safetensors nor pytorch_model.bin" in complaint(REPO)


@pytest.mark.parametrize("model", ["not an/id at all", "--/x", "a b/c@d"])
def test_what_cannot_be_an_id_is_refused_without_asking(hub: FakeHub, model: str) -> None:
    assert f"{model} is neither a model folder nor a Hugging Face id" in complaint(model)


def test_weights_of_one_kind_are_chosen_and_nothing_of_subfolders() -> None:
    names = ["config.json", "model.safetensors.index.json", "consolidated.safetensors"]
    safe = ["model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"]
    bins = ["pytorch_model-00001-of-00001.bin", "original/pytorch_model.bin", "optimizer.bin"]

    assert choose_files([*names, *safe, *bins], wants_weights=True) == [*names[:2], *safe]
    assert choose_files([*names, *bins], wants_weights=True) == [*names[:2], bins[0]]
    assert choose_files([*names, *safe], wants_weights=False) == names[:2]
