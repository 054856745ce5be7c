"""Processes that all tests of ranks share: who has ended is replaced."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from tests.engine.rank_processes import RankProcesses
from tests.engine.ranks.data_places import DataPlaces


@pytest.fixture(scope="session")
def ranks() -> Iterator[RankProcesses]:
    processes = RankProcesses()
    yield processes
    processes.close()


@pytest.fixture(scope="session")
def places() -> Iterator[DataPlaces]:
    places = DataPlaces()
    yield places
    places.close()
