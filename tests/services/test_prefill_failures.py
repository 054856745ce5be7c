"""What a decode replica logs of prefill replicas that fail."""

from __future__ import annotations

import pytest

from baton.core.clock import ManualClock
from baton.core.errors import Overloaded, Unavailable
from baton.core.ids import ReplicaId
from baton.decode_service.prefill_failures import LOGGED_EACH_S, PrefillFailures

P, OTHER = ReplicaId("prefill-1"), ReplicaId("prefill-2")


def test_a_replica_that_fails_every_request_is_logged_once_a_minute_and_when_it_works_again(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level("INFO")
    clock = ManualClock()
    failures = PrefillFailures(clock)

    failures.worked(P)
    for number in range(5):
        failures.failed(P, Unavailable("prefill-1 answers nobody"), f"r{number}#1", {})
    failures.failed(P, Overloaded("prefill-1 is full"), "r5#1", {})
    failures.failed(OTHER, Unavailable("prefill-2 answers nobody"), "r6#1", {})
    clock.advance(LOGGED_EACH_S)
    failures.failed(P, Unavailable("prefill-1 answers nobody"), "r7#1", {})
    failures.worked(P)
    failures.worked(P)
    failures.failed(P, Unavailable("prefill-1 answers nobody"), "r8#1", {})
    failures.worked(P)

    assert [record.getMessage() for record in caplog.records] == [
        "r0#1: prefill-1 answers nobody",
        "r5#1: prefill-1 is full",
        "r6#1: prefill-2 answers nobody",
        "r7#1: prefill-1 answers nobody (4 more failures like it since the last warning)",
        "prefill-1 computes prompts again",
    ]
