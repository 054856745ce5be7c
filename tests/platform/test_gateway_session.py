from __future__ import annotations

import asyncio

from baton.core.ids import Epoch, RequestId
from baton.core.messages import Capacity, TokenUpdate
from baton.decode_service.session import Frame, GatewaySession


def update(*tokens: int) -> TokenUpdate:
    return TokenUpdate(request_id=RequestId("r"), attempt=1, tokens=tokens)


async def next_frame(session: GatewaySession) -> Frame:
    frame = await session.next_frame()
    assert frame is not None
    return frame


async def is_silent(session: GatewaySession) -> bool:
    try:
        async with asyncio.timeout(0.01):
            await session.next_frame()
    except TimeoutError:
        return True
    return False


async def test_the_first_token_leaves_at_once() -> None:
    session = GatewaySession(Epoch("g"))
    sending = asyncio.create_task(next_frame(session))
    await asyncio.sleep(0)

    session.put(update(1))

    assert (await sending).updates == (update(1),)


async def test_what_piles_up_while_the_stream_is_busy_leaves_in_one_frame_in_order() -> None:
    session = GatewaySession(Epoch("g"))
    for token in range(3):
        session.put(update(token))

    frame = await next_frame(session)

    assert frame.updates == (update(0), update(1), update(2))
    assert await is_silent(session)


async def test_a_change_of_capacity_is_news_by_itself_and_only_the_last_word_counts() -> None:
    session = GatewaySession(Epoch("g"))
    session.put_capacity(Capacity(max_open=1))
    session.put_capacity(Capacity(max_open=2))

    frame = await next_frame(session)

    assert (frame.updates, frame.capacity) == ((), Capacity(max_open=2))
    session.put_capacity(Capacity(max_open=2))
    assert await is_silent(session)


async def test_every_frame_carries_the_capacity() -> None:
    session = GatewaySession(Epoch("g"))
    session.put_capacity(Capacity(max_open=3))
    await session.next_frame()

    session.put(update(1))

    assert (await next_frame(session)).capacity == Capacity(max_open=3)


async def test_a_frame_that_nobody_waits_for_any_more_is_not_lost() -> None:
    session = GatewaySession(Epoch("g"))
    assert await is_silent(session)

    session.put(update(1))

    assert (await next_frame(session)).updates == (update(1),)


async def test_nothing_is_kept_for_a_gateway_that_has_gone() -> None:
    session = GatewaySession(Epoch("g"))
    session.is_closed = True

    session.put(update(1))

    assert await is_silent(session)


async def test_a_session_that_ends_sends_what_is_pending_and_then_nothing() -> None:
    session = GatewaySession(Epoch("g"))
    session.put(update(1))

    session.end()
    session.end()

    assert (await next_frame(session)).updates == (update(1),)
    assert await session.next_frame() is None
