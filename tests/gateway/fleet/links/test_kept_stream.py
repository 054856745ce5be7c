"""How soon a stream to a replica is tried again."""

from __future__ import annotations

import asyncio

import pytest

from baton.core.ids import ReplicaId
from baton.gateway.fleet.links import kept_stream
from baton.gateway.fleet.links.kept_stream import MAX_RECONNECT_S, RECONNECT_S, keep_open


async def test_a_replica_that_is_gone_is_tried_ever_more_seldom_and_one_that_was_there_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pauses: list[float] = []
    is_open, num_tries = False, 0

    async def pump() -> None:
        nonlocal is_open, num_tries
        num_tries += 1
        is_open = num_tries == 9
        if num_tries == 11:
            raise asyncio.CancelledError

    def unjittered(pause_s: float) -> float:
        pauses.append(pause_s)
        return 0.0

    monkeypatch.setattr(kept_stream, "jittered", unjittered)
    with pytest.raises(asyncio.CancelledError):
        await keep_open(ReplicaId("r"), pump, lambda: is_open, lambda _: None)

    in_vain, after_it_was_there = pauses[:8], pauses[8:]
    assert in_vain[0] == RECONNECT_S
    assert in_vain == sorted(in_vain)
    assert in_vain[-1] == MAX_RECONNECT_S
    assert after_it_was_there == [RECONNECT_S, 1.5 * RECONNECT_S]
