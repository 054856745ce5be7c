"""Fixtures of this folder."""

from __future__ import annotations

import pytest


@pytest.fixture(autouse=True)
def ends_are_answered_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """However slow a busy machine is to hear that a stream has been left."""
    for module in ("stream", "async_stream"):
        monkeypatch.setattr(f"baton.client.{module}.END_TIMEOUT_S", 60.0)
