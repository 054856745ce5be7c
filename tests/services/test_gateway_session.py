from __future__ import annotations

import asyncio
from dataclasses import replace

from baton.core.errors import Unavailable
from baton.core.ids import Epoch, RequestId
from baton.core.messages import Receipt, TokenUpdate
from baton.core.replicas import Capacity
from baton.core.sampling import FinishReason, TokenLogprob
from baton.decode_service.session import Frame, GatewaySession


def update(*tokens: int) -> TokenUpdate:
    return TokenUpdate(request_id=RequestId("r"), attempt=1, tokens=tokens)


def named(request_id: str) -> TokenUpdate:
    return TokenUpdate(request_id=RequestId(request_id), attempt=1, tokens=(7,))


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


async def test_what_piles_up_while_the_stream_is_busy_leaves_in_one_frame_as_one_update() -> None:
    session = GatewaySession(Epoch("g"))
    receipt = Receipt(output_tokens=1)
    other = TokenUpdate(request_id=RequestId("s"), attempt=1, tokens=(7,))
    session.put(replace(update(0), receipt=receipt))
    session.put(other)
    session.put(update(1))
    session.put(replace(update(2), finish_reason=FinishReason.LENGTH))

    frame = await next_frame(session)

    whole = replace(update(0, 1, 2), receipt=receipt, finish_reason=FinishReason.LENGTH)
    assert frame.updates == (whole, other)
    assert await is_silent(session)


async def test_the_logprobs_of_a_prompt_leave_in_a_frame_of_their_own() -> None:
    session = GatewaySession(Epoch("g"))
    logprobs = (TokenLogprob(token=3, logprob=-0.5),)
    heavy = [replace(named(name), prompt_logprobs=logprobs) for name in ("a", "b")]
    for each in (named("first"), heavy[0], named("second"), heavy[1]):
        session.put(each)
    session.put(replace(named("a"), error=Unavailable("gone")))
    session.end()

    frames = [[u.request_id for u in (await next_frame(session)).updates] for _ in range(5)]

    assert frames == [["first"], ["a"], ["second"], ["b"], ["a"]]
    assert await session.next_frame() is None


async def test_tokens_leave_before_the_error_that_follows_them() -> None:
    session = GatewaySession(Epoch("g"))
    failed = replace(update(), error=Unavailable("gone"))
    session.put(update(1))
    session.put(failed)

    assert (await next_frame(session)).updates == (update(1), failed)


async def test_a_change_of_capacity_is_news_by_itself_and_only_the_last_word_counts() -> None:
    session = GatewaySession(Epoch("g"))
    session.put_capacity(Capacity(max_open=1))
    session.put_capacity(Capacity(max_open=2))

    frame = await next_frame(session)

    assert (frame.updates, frame.capacity) == ((), Capacity(max_open=2))
    session.put_capacity(Capacity(max_open=2))
    assert await is_silent(session)


async def test_frames_carry_the_capacity_only_when_it_is_news() -> None:
    session = GatewaySession(Epoch("g"))
    session.put_capacity(Capacity(max_open=3))
    first = await next_frame(session)

    session.put(update(1))

    assert first.capacity == Capacity(max_open=3)
    assert (await next_frame(session)).capacity is None


async def test_a_capacity_that_lets_nobody_in_goes_with_the_next_update() -> None:
    session = GatewaySession(Epoch("g"))
    session.put_capacity(Capacity(max_open=3))
    await next_frame(session)
    sending = asyncio.create_task(next_frame(session))

    session.put_capacity(Capacity(max_open=3, num_queued_tokens=7))
    await asyncio.sleep(0)
    is_sent_alone = sending.done()
    session.put(update(1))

    assert not is_sent_alone
    assert await sending == Frame((update(1),), Capacity(max_open=3, num_queued_tokens=7))
    assert await is_silent(session)


async def test_a_capacity_that_lets_nobody_in_leaves_by_itself_if_no_update_comes() -> None:
    session = GatewaySession(Epoch("g"))
    session.put_capacity(Capacity(max_open=3))
    await next_frame(session)

    session.put_capacity(Capacity(max_open=3, num_queued_tokens=7))

    frame = await next_frame(session)
    assert frame == Frame((), Capacity(max_open=3, num_queued_tokens=7))


async def test_a_replica_that_begins_to_drain_says_so_at_once() -> None:
    session = GatewaySession(Epoch("g"))
    session.put_capacity(Capacity(max_open=3))
    await next_frame(session)
    sending = asyncio.create_task(next_frame(session))
    await asyncio.sleep(0)

    session.put_capacity(Capacity(max_open=3, is_draining=True))
    await asyncio.sleep(0)

    assert sending.done()


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
