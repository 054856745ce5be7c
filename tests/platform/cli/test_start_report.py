"""A line a stage, and what is waited for once nothing has been said for a while."""

from __future__ import annotations

import io
import logging
from dataclasses import replace

import pytest
from rich.console import Console
from rich.progress import Progress
from tests.gateway.fleet.known_replicas import make_replica

from baton.core.clock import ManualClock
from baton.core.ids import Epoch, ReplicaId
from baton.core.replicas import Membership, ReplicaInfo, Role, StartingReplica
from baton.gateway.requests.readiness import missing
from baton.platform.cli.runs.deploy import cause_of
from baton.platform.cli.terminal.progress import StartBars
from baton.platform.cli.terminal.replica_news import ReplicaNews
from baton.platform.cli.terminal.start_report import StartReport

WANTED = {Role.DECODE: 1}
LOADING = StartingReplica(
    replica_id=ReplicaId("decode-1"), role=Role.DECODE, stage="loading weights", fraction=0.5
)


def make_report(clock: ManualClock) -> tuple[StartReport, list[str], Progress]:
    bars = Progress(console=Console(file=io.StringIO()))
    lines: list[str] = []
    return StartReport(lines.append, StartBars(bars), clock), lines, bars


def test_each_stage_of_a_replica_is_one_line_however_often_it_is_seen() -> None:
    report, lines, bars = make_report(ManualClock())
    report.enter("starting Ray")

    for _ in range(3):
        report.see((), (LOADING,), missing(WANTED, {}, (LOADING,)))
    assert "decode-1 loading weights" in [task.description for task in bars.tasks]
    report.see((make_replica("decode-1"),), (), ())

    assert lines == ["starting Ray", "decode-1: loading weights", "decode-1: ready"]


def test_what_is_waited_for_is_repeated_only_after_a_silence() -> None:
    clock = ManualClock()
    report, lines, _ = make_report(clock)
    report.enter("starting Ray")
    report.see((), (LOADING,), missing(WANTED, {}, (LOADING,)))

    clock.advance(14.0)
    report.tick()
    assert len(lines) == 2
    clock.advance(2.0)
    report.tick()
    report.tick()

    assert lines[2:] == [
        "still waiting after 16 s: decode 0/1: decode-1: loading weights 50% (0 s)"
    ]


TRACE = """The deployment failed to start 3 times in a row. See controller logs. Error:
ray::ServeReplica:baton:Decode.initialize() (pid=7)
Traceback (most recent call last):
  File "x.py", line 3, in load
RuntimeError: rank 1 has ended: CheckpointError: no config.json
"""
KILLED = """A replica failed to start with exception. Retrying 2 more time(s). Error:
The actor died unexpectedly before finishing this task.
	class_name: ServeReplica:baton:Decode
Worker exit type: SYSTEM_ERROR Worker exit detail: Worker unexpectedly exits with a connection \
error code 2. End of file. Some common causes include: (1) the OOM killer"""


@pytest.mark.parametrize(
    ("message", "cause"),
    [
        (TRACE, "RuntimeError: rank 1 has ended: CheckpointError: no config.json"),
        ("Not enough resources.\nMore of it.", "Not enough resources."),
        ("", "Serve gives no reason"),
    ],
)
def test_one_sentence_is_told_of_a_replica_that_did_not_come_up(message: str, cause: str) -> None:
    assert cause_of(message) == cause


def test_a_process_that_was_killed_is_said_to_have_died() -> None:
    assert cause_of(KILLED).startswith("its process died: Worker unexpectedly exits")


def test_once_the_registry_misses_nobody_it_is_the_gateway_that_is_waited_for() -> None:
    clock = ManualClock()
    report, lines, _ = make_report(clock)
    report.see((), (LOADING,), missing(WANTED, {}, (LOADING,)))
    report.wait_for("decode 0/1: decode-1: no connection")
    report.see((make_replica("decode-1"),), (), ())

    clock.advance(16.0)
    report.tick()

    assert lines[-1].endswith("still waiting after 16 s: decode 0/1: decode-1: no connection")


def see(news: ReplicaNews, *known: ReplicaInfo | StartingReplica, age_s: float = 60) -> list[str]:
    """What is said to be new where the registry knows these."""
    membership = Membership(
        incarnation=Epoch("r"),
        version=1,
        age_s=age_s,
        replicas=tuple(one for one in known if isinstance(one, ReplicaInfo)),
        starting=tuple(one for one in known if isinstance(one, StartingReplica)),
    )
    found = news.since_last_time(membership)
    return [f"{logging.getLevelName(one.level)} {one.text}" for one in found]


def test_a_replica_that_went_or_came_is_one_line_but_not_what_a_new_registry_has_yet_to_hear() -> (
    None
):
    news = ReplicaNews({Role.DECODE: 2})
    a, b, c = map(make_replica, "abc")

    assert see(news, a, b) == []
    assert see(news, a) == ["WARNING b is gone: 1 of 2 decode replicas serve"]
    assert see(news, a, c) == ["WARNING c has come: 2 of 2 decode replicas serve"]
    assert see(news, age_s=0.5) == []
    assert see(news, a, c) == []


def test_a_replica_that_changes_its_role_is_neither_gone_nor_more_than_is_wanted() -> None:
    news = ReplicaNews({Role.PREFILL: 2, Role.DECODE: 1})
    p, q = (replace(make_replica(name), role=Role.PREFILL) for name in "pq")
    d, flipped = make_replica("d"), replace(p, role=Role.DECODE, is_flipped=True)
    turning = StartingReplica(replica_id=p.replica_id, role=Role.DECODE, stage="", is_flipped=True)

    see(news, p, q, d)
    assert see(news, q, d, turning) == []
    assert see(news, q, d, flipped) == ["INFO p now decodes: 1 prefill and 2 decode replicas serve"]
    assert see(news, q, flipped) == ["WARNING d is gone: 1 of 2 decode replicas serve"]
    assert see(news, q, replace(turning, role=Role.PREFILL, is_flipped=False)) == []
    assert see(news, q) == ["WARNING p is gone: 0 of 1 decode replicas serve"]
