"""Who may make a running request leave."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator

import pytest
from tests.in_process_fleet import echo_engine

from baton.core.ids import Epoch, RequestId, TransferId
from baton.core.messages import GenerateRequest, PullOffered, PullRequest
from baton.core.replicas import Role
from baton.decode_service.departures import Departures
from baton.decode_service.generating import Generating
from baton.decode_service.open_requests import OpenRequests
from baton.decode_service.session import GatewaySession
from baton.kv_transfer.pulling.lending import Hold


class Lender:
    """Remembers whether it was to lend a request's own blocks."""

    def __init__(self) -> None:
        self.holds: list[bool] = []

    async def lend(self, request: PullRequest, hold: Hold | None) -> AsyncGenerator[PullOffered]:
        self.holds.append(hold is not None)
        return
        yield


@pytest.mark.parametrize(
    ("salt", "attempt", "leaves"), [(b"own", 2, True), (b"other", 2, False), (b"own", 1, False)]
)
async def test_a_request_leaves_for_whoever_has_its_salt_and_its_attempt(
    salt: bytes, attempt: int, leaves: bool
) -> None:
    engine, lender, requests = echo_engine(Role.DECODE), Lender(), OpenRequests()
    message = GenerateRequest(request_id=RequestId("r"), attempt=2, prompt=(1, 2, 3), salt=b"own")
    requests.add(Generating(message, GatewaySession(Epoch("g")), arrived_at=0.0, block_size=4))
    departures = Departures(
        engine=engine,
        open=requests,
        lender=lender,  # type: ignore[arg-type]
        fail=lambda generating, error: None,
        max_wait_s=60.0,
    )
    pull = PullRequest(
        transfer_id=TransferId("t"),
        receiver_epoch=Epoch("d"),
        layout=engine.pool.layout,
        tokens=message.prompt,
        salt=salt,
        request_id=message.request_id,
        attempt=attempt,
        time_left_ms=1000,
    )

    assert [offered async for offered in departures.pull(pull)] == []

    assert lender.holds == [leaves]


async def test_kv_on_its_way_to_a_request_that_is_to_leave_is_awaited_for_our_own_time_only() -> (
    None
):
    engine, lender, requests = echo_engine(Role.DECODE), Lender(), OpenRequests()
    message = GenerateRequest(request_id=RequestId("r"), attempt=1, prompt=(1, 2, 3))
    generating = Generating(message, GatewaySession(Epoch("g")), arrived_at=0.0, block_size=4)
    generating.is_arriving = True
    generating.task = asyncio.create_task(asyncio.sleep(3600))
    requests.add(generating)
    departures = Departures(
        engine=engine,
        open=requests,
        lender=lender,  # type: ignore[arg-type]
        fail=lambda generating, error: None,
        max_wait_s=0.01,
    )
    pull = PullRequest(
        transfer_id=TransferId("t"),
        receiver_epoch=Epoch("d"),
        layout=engine.pool.layout,
        tokens=message.prompt,
        request_id=message.request_id,
        attempt=1,
        time_left_ms=2**63,
    )

    async with asyncio.timeout(120):
        assert [offered async for offered in departures.pull(pull)] == []

    assert lender.holds == [True]
    generating.task.cancel()
