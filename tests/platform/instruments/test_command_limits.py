"""What `baton bench engine` and `baton profile` refuse or skip, and that they say so at once."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.tiny_checkpoints import make_llama
from typer.testing import CliRunner, Result

from baton.platform.cli.main import app
from baton.platform.config.deployment import DeploymentConfig
from baton.platform.instruments import loaded_engine
from baton.platform.instruments.loaded_engine import load_measured


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_llama(tmp_path_factory.mktemp("model"))


def baton(*arguments: object) -> Result:
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


@pytest.mark.parametrize("command", [("bench", "engine", "--json"), ("bench", "engine", "--png"),
                                     ("profile", "--trace")])  # fmt: skip
@pytest.mark.parametrize("file", ["no such folder/file", "."])
def test_a_file_that_cannot_be_written_is_refused_before_anything_runs(
    command: tuple[str, ...], file: str, folder: Path, tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.setattr(loaded_engine, "load_model", None)

    result = baton(*command, tmp_path / file, folder)

    assert result.exit_code == 2, result.output
    assert command[-1] in result.stderr and "folder" in result.stderr


@pytest.mark.usefixtures("small_probes")
def test_a_cache_that_is_small_is_named_as_the_reason(folder: Path) -> None:
    sizes = ("--measure", "prefill", "--length", 300, "--num-blocks", 4)

    result = baton("bench", "engine", folder, *sizes)

    assert "the cache holds 64 tokens" in result.output


def test_memory_is_taken_for_the_largest_measurement_that_fits(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loaded_engine, "_free_bytes", lambda device: 1 << 20)

    loaded = load_measured(folder, DeploymentConfig(), sizes=[64, 160, 10**9], max_running=2)

    assert loaded.max_tokens == 160 + 2 * loaded.engine.pool.layout.block_size
