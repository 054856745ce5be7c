"""What fails while a request moves costs no token, and leaves nothing behind."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import pytest
from tests.in_process_fleet import (
    running_fleet,
)
from tests.services.migrating import (
    LONG,
    PROMPT,
    SAMPLED,
    ask_and_drain,
    busy,
    is_empty,
)

from baton.core.errors import DeadlineExceeded, InvalidRequest
from baton.core.ids import ReplicaId
from baton.core.messages import PullOffered, PullRequest
from baton.decode_service.departures import Departures


@pytest.mark.parametrize("victim", ["the old replica", "the new replica"])
async def test_a_replica_that_dies_in_the_move_costs_no_token(
    victim: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    honest = Departures.pull
    pulled: list[PullRequest] = []

    async with running_fleet(prefill=0, decode=3) as fleet:
        undisturbed = await fleet.ask(PROMPT, SAMPLED)

        async def dying(self: Departures, message: PullRequest) -> Any:
            async for offered in honest(self, message):
                if not pulled:
                    pulled.append(message)
                    await fleet.crash(self_id if victim == "the old replica" else other_id())
                yield offered

        def other_id() -> ReplicaId:
            [other] = [
                replica_id
                for replica_id, replica in fleet.replicas.items()
                if replica.info.epoch == pulled[0].receiver_epoch
            ]
            return other

        self_id = ReplicaId("")

        async def on_token(num_tokens: int) -> None:
            nonlocal self_id
            if num_tokens >= 7 and not self_id:
                [self_id] = busy(fleet)
                await fleet.dispatcher.drain(self_id, is_forced=False)
                go_on()

        monkeypatch.setattr(Departures, "pull", dying)
        with fleet.halting_at(7) as go_on:
            answer = await fleet.ask(PROMPT, SAMPLED, on_token=on_token)

        assert len(pulled) == 1 or victim == "the new replica"
        assert answer.tokens == undisturbed.tokens
        await fleet.assert_nothing_is_held()


async def test_a_client_that_leaves_in_the_move_leaves_nothing_behind(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    moving, honest = asyncio.Event(), Departures.pull

    async def halting(self: Departures, message: PullRequest) -> Any:
        async for offered in honest(self, message):
            moving.set()
            yield offered

    monkeypatch.setattr(Departures, "pull", halting)
    async with running_fleet(prefill=0, decode=2) as fleet:
        asking = asyncio.create_task(ask_and_drain(fleet))
        await moving.wait()

        asking.cancel()
        await asyncio.gather(asking, return_exceptions=True)

        await fleet.assert_nothing_is_held()
        await is_empty(fleet, ReplicaId("decode-1"))


async def test_a_time_limit_counts_on_over_the_move() -> None:
    async with running_fleet(prefill=0, decode=2) as fleet:
        endless = replace(LONG, max_tokens=1900)
        with pytest.raises(DeadlineExceeded):
            await ask_and_drain(fleet, endless, time_left_s=0.15)

        await fleet.assert_nothing_is_held()


async def test_a_move_that_cannot_be_made_is_a_continuation_like_any_other(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def refusing(self: Departures, message: PullRequest) -> Any:
        if message.request_id is None:
            yield PullOffered
        raise InvalidRequest("not today")

    monkeypatch.setattr(Departures, "pull", refusing)
    async with running_fleet(prefill=1, decode=2) as fleet:
        undisturbed = await fleet.ask(PROMPT, SAMPLED)

        answer, drained = await ask_and_drain(fleet, SAMPLED)

        assert answer.tokens == undisturbed.tokens
        assert f"nothing brought in from {drained}: not today" in answer.receipt.notes
        await is_empty(fleet, drained)
        await fleet.assert_nothing_is_held()
