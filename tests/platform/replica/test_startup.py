"""A replica tells the registry how far it is, and why it gives up."""

from __future__ import annotations

import asyncio
import logging

import pytest
from tests.gateway.fleet.scripted_replica import until

from baton.core.errors import CheckpointError, ModelUnreachable
from baton.core.ids import ReplicaId
from baton.core.replicas import Role, StartingReplica
from baton.platform.replica.startup import IMPORTING, Startup


class Heard:
    """A registry that keeps what it is told, or is away."""

    def __init__(self, *, is_away: bool = False, again_s: float = 60.0) -> None:
        self.told: list[StartingReplica] = []
        self._is_away = is_away
        self._again_s = again_s

    async def report_starting(self, starting: StartingReplica) -> float:
        if self._is_away:
            raise ConnectionError("the registry is away")
        self.told.append(starting)
        return self._again_s


def startup(registry: Heard) -> Startup:
    starting = StartingReplica(replica_id=ReplicaId("decode-1"), role=Role.DECODE, stage=IMPORTING)
    return Startup(registry, starting)


async def test_each_stage_is_told_as_it_begins() -> None:
    registry = Heard()
    async with startup(registry) as it:
        await until(lambda: registry.told)
        it.enter("loading weights")
        it.advance(0.5)
        await until(lambda: len(registry.told) > 1)

    stages = [(one.stage, one.fraction) for one in registry.told]
    assert stages == [("importing", None), ("loading weights", 0.5)]


@pytest.mark.parametrize(
    ("error", "failure", "is_final"),
    [
        (CheckpointError("no config.json"), "no config.json", True),
        (MemoryError("no room\nfor it"), "MemoryError: no room for it", False),
        (ModelUnreachable("the hub is down; try again"), "the hub is down; try again", False),
    ],
)
async def test_the_last_word_of_a_replica_that_cannot_start_is_its_cause(
    error: Exception, failure: str, is_final: bool
) -> None:
    registry = Heard()
    with pytest.raises(type(error)):
        async with startup(registry) as it:
            it.enter("loading weights")
            raise error

    last = registry.told[-1]
    assert (last.stage, last.failure, last.is_final) == ("loading weights", failure, is_final)


async def test_a_cause_that_the_registry_cannot_be_told_is_an_error_in_the_log(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with pytest.raises(CheckpointError):
        async with startup(Heard(is_away=True)):
            raise CheckpointError("no config.json")

    errors = [record.message for record in caplog.records if record.levelno == logging.ERROR]
    assert errors == ["failed while importing: no config.json"]


@pytest.mark.parametrize("num_turns", (0, 1, 3))
async def test_nothing_is_told_once_it_serves_however_it_meets_the_answer(num_turns: int) -> None:
    registry = Heard()
    answer = asyncio.get_running_loop().create_future()

    async def report_starting(starting: StartingReplica) -> float:
        registry.told.append(starting)
        await answer
        return 60.0

    registry.report_starting = report_starting  # type: ignore[method-assign]
    async with startup(registry) as it:
        await asyncio.sleep(0.001)
        answer.set_result(None)
        for _ in range(num_turns):
            await asyncio.sleep(0)
        it.enter("starting")  # news, which would be told at once

    num_told = len(registry.told)
    await asyncio.sleep(0.001)
    it.enter("never told")
    await asyncio.sleep(0.001)
    assert len(registry.told) == num_told
