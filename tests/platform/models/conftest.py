"""A cache of models, and where they come from: a server of the web, and a folder."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.file_server import FileServer, file_server
from tests.platform.models.fetched_files import FILES

from baton.platform.models import download


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("BATON_MODEL_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(download.Download.__init__, "__defaults__", ((0.0, 0.0),))
    return tmp_path / "cache"


@pytest.fixture
def web(cache: Path) -> Iterator[FileServer]:
    with file_server({f"m/{name}": data for name, data in FILES.items()}) as server:
        yield server


@pytest.fixture
def far(tmp_path: Path) -> Path:
    (tmp_path / "far").mkdir()
    for name, data in FILES.items():
        (tmp_path / "far" / name).write_bytes(data)
    return tmp_path / "far"
