"""Without HOME nothing is lost, and nothing is written into a folder called `~`."""

from __future__ import annotations

import os
from pathlib import Path
from types import SimpleNamespace

import pytest
from typer.testing import CliRunner

from baton.core.home import home
from baton.kernels.cpu.library import cache_folder
from baton.platform.cli.main import app
from baton.platform.cluster.local_cluster import ray_environment
from baton.platform.models.node_cache import own_cache


@pytest.mark.parametrize("known", ["/home/of-baton", None])
def test_without_a_home_variable_all_go_by_the_same_home(
    known: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    def entry(uid: int) -> SimpleNamespace:
        if known is None:
            raise KeyError(uid)
        return SimpleNamespace(pw_dir=known)

    for name in ("HOME", "XDG_CACHE_HOME", "BATON_CACHE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr("pwd.getpwuid", entry)
    found = Path(known or "/")
    assert home() == found
    assert own_cache() == found / ".cache" / "baton"
    assert cache_folder() == found / ".cache" / "baton" / "kernels"
    assert isinstance(ray_environment(), dict)
    monkeypatch.setenv("HOME", "")  # to be restored, whoever sets it
    assert CliRunner().invoke(app, ["config", "schema"]).exit_code == 0
    assert os.environ["HOME"] == str(found)
