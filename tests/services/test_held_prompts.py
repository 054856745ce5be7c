"""How much of a prefill replica computed prompts may hold. Real replicas, asked directly."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass

import pytest
from tests.gateway.fleet.scripted_replica import until
from tests.in_process_fleet import Fleet, running_fleet

from baton.core.errors import Overloaded
from baton.core.ids import ReplicaId, RequestId, TransferId
from baton.core.messages import PrefillDone, PrefillGranted, PrefillRequest
from baton.prefill_service.open_prompts import Event
from baton.prefill_service.worker import PrefillWorker

SHARE = {"transfer.max_held_fraction": 0.1}
"""Of 256 blocks of 4 tokens: 25."""


@dataclass
class Asking:
    """A decode replica that asks for prompts and fetches none."""

    fleet: Fleet
    worker: PrefillWorker

    def prompt(self, name: str, tokens: Sequence[int]) -> AsyncGenerator[Event, None]:
        d = self.fleet.replicas[ReplicaId("decode-2")].info
        return self.worker.prefill(
            PrefillRequest(
                request_id=RequestId(name),
                transfer_id=TransferId(name),
                receiver_epoch=d.epoch,
                layout=d.layout,
                prompt=tuple(tokens),
                time_left_ms=30_000,
            )
        )

    async def first_of(self, *calls: AsyncGenerator[Event, None]) -> list[Event | BaseException]:
        """Their first events, if all have come before the engine looks at any of them."""
        gate = threading.Event()
        self.worker.core.thread.post(lambda: _wait(gate))
        asked = [asyncio.ensure_future(anext(call)) for call in calls]
        for _ in range(5):
            await asyncio.sleep(0)
        gate.set()
        async with asyncio.timeout(60):
            return await asyncio.gather(*asked, return_exceptions=True)


def _wait(gate: threading.Event) -> None:
    gate.wait(120)


@asynccontextmanager
async def asking() -> AsyncIterator[Asking]:
    async with running_fleet(changes=SHARE) as fleet:
        worker = fleet.replicas[ReplicaId("prefill-1")].worker
        assert isinstance(worker, PrefillWorker)
        yield Asking(fleet, worker)
        await fleet.assert_nothing_is_held()


async def test_prompts_that_are_being_computed_keep_no_others_from_it() -> None:
    async with asking() as it:
        one, other = it.prompt("one", range(60)), it.prompt("other", range(60, 120))
        async with aclosing(one), aclosing(other):
            granted = await it.first_of(one, other)
            done = [await anext(one), await anext(other)]

            assert [type(event) for event in granted] == [PrefillGranted] * 2
            assert [type(event) for event in done] == [PrefillDone] * 2
            with pytest.raises(Overloaded, match=r"30 blocks held \+ 1 asked for > 25 "):
                await anext(it.prompt("later", range(120, 124)))


async def test_no_credit_is_lent_for_what_would_be_refused() -> None:
    async with asking() as it:
        [link] = it.fleet.dispatcher.fleet.lending

        def credit() -> int:
            return 0 if link.capacity is None else link.capacity.credit_tokens

        await until(lambda: credit() > 10 * 4)
        held = it.prompt("held", range(60))
        async with aclosing(held):
            assert [type(await anext(held)) for _ in range(2)] == [PrefillGranted, PrefillDone]
            await until(lambda: credit() <= 10 * 4)  # 15 of 25 blocks are held

        await until(lambda: credit() > 10 * 4)


async def test_a_prompt_that_would_hold_too_much_is_refused_at_its_turn_and_the_next_one_runs() -> (
    None
):
    async with asking() as it:
        held = it.prompt("held", range(60))
        async with aclosing(held):
            assert [type(await anext(held)) for _ in range(2)] == [PrefillGranted, PrefillDone]
            large, small = it.prompt("large", range(60, 120)), it.prompt("small", range(200, 240))

            refused, granted = await it.first_of(large, small)

            assert isinstance(refused, Overloaded)
            assert "15 blocks held + 15 asked for > 25 " in str(refused)
            assert isinstance(granted, PrefillGranted)
            assert isinstance(await anext(small), PrefillDone)
            await small.aclose()
