"""A replica moves its KV onto huge pages while it serves, tells how much, and ends."""

from __future__ import annotations

import threading
from functools import partial

import pytest
from tests.gateway.fleet.scripted_replica import until
from tests.in_process_fleet import GREEDY, VOCAB_SIZE, echo_engine, running_fleet

from baton.engine.memory import huge_arena
from baton.engine.passes.echo import echo_output
from baton.kernels.cpu.shared_mapping import HUGE_PAGE, can_collapse

PROMPT = list(range(3, 43))


@pytest.mark.skipif(not can_collapse(), reason="Linux 6.1 moves shared memory")
async def test_kv_is_moved_under_running_requests_and_stays_what_it_was(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each pass of the engine reads all KV before it, and fails if a byte is wrong. The decode
    replica maps the other's memory, too."""
    monkeypatch.setattr(huge_arena, "LOOK_S", 0.02)
    monkeypatch.setattr(huge_arena, "SHARE_BUSY", 1.0)
    monkeypatch.setattr(huge_arena, "SHARE_LOOKING", 1.0)
    monkeypatch.setattr(huge_arena, "FULL", 1)
    monkeypatch.setattr(huge_arena, "_is_begun", lambda address: True)
    engine = partial(echo_engine, num_blocks=40_000)
    shared = {"transfer.transport": "shm"}
    async with running_fleet(make_engine=engine, changes=shared) as fleet:
        workers = [replica.worker for replica in fleet.replicas.values()]
        before = await fleet.ask(PROMPT)
        await until(lambda: all(w.metrics()["kv_huge_page_bytes"] >= HUGE_PAGE for w in workers))
        after = await fleet.ask([*PROMPT, 7])

    assert before.receipt.transport == after.receipt.transport == "shm"
    assert before.tokens == echo_output(PROMPT, GREEDY.max_tokens, VOCAB_SIZE)
    assert after.tokens == echo_output([*PROMPT, 7], GREEDY.max_tokens, VOCAB_SIZE)
    assert not [thread for thread in threading.enumerate() if thread.name == "huge pages"]


@pytest.mark.skipif(not can_collapse(), reason="Linux 6.1 moves shared memory")
async def test_no_page_is_moved_any_more_where_closing_the_exchange_fails(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def fail() -> None:
        raise RuntimeError("a transport that cannot be closed")

    engine = partial(echo_engine, num_blocks=40_000)
    async with running_fleet(make_engine=engine) as fleet:
        cores = [replica.worker.core for replica in fleet.replicas.values()]
        with monkeypatch.context() as patched, pytest.raises(RuntimeError, match="cannot be"):
            patched.setattr(cores[0].kv, "close", fail)
            await cores[0].stop()

        left = [thread for thread in threading.enumerate() if thread.name == "huge pages"]
        assert len(left) == len(cores) - 1
