"""Measurements whose numbers nobody looks at."""

from __future__ import annotations

import pytest

from baton.platform.instruments import ceilings, engine_bench


@pytest.fixture
def small_probes(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is measured here means nothing, so it need not take long."""
    monkeypatch.setattr(ceilings, "PROBE_BYTES", {"cpu": 1 << 20})
    monkeypatch.setattr(ceilings, "PRODUCTS", {"cpu": ((32, 64, 64),)})
    monkeypatch.setattr(ceilings, "_probe", ceilings._probe.__wrapped__)
    monkeypatch.setattr(engine_bench, "POINT_S", 0.02)
