"""`baton models`: what there is, and why some of it cannot be served."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from safetensors.torch import load_file
from tests.tiny_checkpoints import make_llama, make_mixtral
from typer.testing import CliRunner

from baton.engine.models.registry import ARCHITECTURES
from baton.platform.cli.main import app
from baton.platform.cli.options.completion import cached_ids, complete_model
from baton.platform.models.model_listing import ListedModel, describe, list_models

COMMIT = "0123456789abcdef0123456789abcdef01234567"


def put_into_cache(cache: Path, repo: str, model: Path, *, ref: str | None = "main") -> Path:
    """As huggingface_hub lays it out."""
    folder = cache / f"models--{repo.replace('/', '--')}"
    snapshot = folder / "snapshots" / COMMIT
    shutil.copytree(model, snapshot)
    (folder / "blobs").mkdir()
    (folder / "refs").mkdir()
    if ref is not None:
        (folder / "refs" / ref).write_text(COMMIT)
    return snapshot


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    cache = tmp_path / "cache"
    cache.mkdir()
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(cache))
    monkeypatch.setenv("HF_HUB_CACHE", str(cache))
    monkeypatch.setenv("BATON_MODEL_CACHE", str(tmp_path / "own"))
    return cache


def listed(name: str) -> ListedModel:
    [found] = [model for model in list_models() if model.name == name]
    return found


def test_the_demo_is_listed_with_what_its_files_say() -> None:
    demo = listed("demo")

    assert demo.architecture == "LlamaForCausalLM"
    assert (demo.dtype, demo.max_model_len, demo.problem) == ("BF16", 2048, "")
    assert 4e6 < demo.num_parameters < 5e6
    assert demo.num_active == demo.num_parameters
    assert demo.size_bytes == 2 * demo.num_parameters


def test_cached_models_are_listed_by_what_to_serve_them_as(cache: Path, tmp_path: Path) -> None:
    model = make_llama(tmp_path / "model")
    snapshot = put_into_cache(cache, "org/named", model)
    put_into_cache(cache, "org/pinned", model, ref=None)

    named, pinned = listed("org/named"), listed(f"org/pinned@{COMMIT}")

    tensors = load_file(model / "model.safetensors").values()
    assert named.num_parameters == sum(tensor.numel() for tensor in tensors)
    assert named.folder == snapshot
    assert (named.problem, pinned.problem) == ("", "")


def test_of_experts_it_is_told_how_much_of_them_a_token_uses(tmp_path: Path) -> None:
    mixtral = describe("mixtral", make_mixtral(tmp_path))

    num_layers, num_experts, num_chosen, expert = 2, 5, 2, 3 * 32 * 48
    idle = num_layers * (num_experts - num_chosen) * expert
    assert mixtral.problem == ""
    assert mixtral.num_active == mixtral.num_parameters - idle


def test_what_cannot_be_served_is_listed_with_the_reason(tmp_path: Path) -> None:
    folder = make_llama(tmp_path)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "architectures": ["BertModel"]}))

    bert = describe("bert", folder)
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "model.safetensors").unlink()
    empty = describe("empty", folder)

    assert bert.architecture == "BertModel"
    assert "architecture 'BertModel' is not supported" in bert.problem
    assert empty.max_model_len == 512
    assert "holds neither model.safetensors" in empty.problem


def test_no_cache_is_no_mistake(monkeypatch: pytest.MonkeyPatch, cache: Path) -> None:
    cache.rmdir()

    assert "demo" in [model.name for model in list_models()]


def test_the_command_lists_models_and_families(cache: Path) -> None:
    run = CliRunner().invoke

    table = run(app, ["models"], env={"COLUMNS": "120"})
    as_json = json.loads(run(app, ["models", "--json"]).stdout)
    families = json.loads(run(app, ["models", "--families", "--json"]).stdout)

    [row] = [line for line in table.stdout.splitlines() if line.split()[:1] == ["demo"]]
    assert row.split() == ["demo", "LlamaForCausalLM", "4.5M", "BF16", "8.6MB", "2048", "supported"]
    assert [one["is_supported"] for one in as_json if one["name"] == "demo"] == [True]
    assert tuple(families) == ARCHITECTURES
    assert all(families.values())


def test_the_shell_completes_names_of_models(cache: Path) -> None:
    (cache / "models--org--a--b").mkdir()
    (cache / "models--gpt2").mkdir()
    (cache / "datasets--org--c").mkdir()

    assert cached_ids() == ["org/a--b"]
    assert complete_model("") == ["demo", "draft", "org/a--b"]
    assert complete_model("d") == ["demo", "draft"]
    assert complete_model("org/") == ["org/a--b"]
