"""Requests given to a worker of the same process."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from tests.in_process_fleet import echo_engine

from baton.core.errors import InvalidRequest, Unavailable
from baton.core.ids import ReplicaId, RequestId, new_epoch
from baton.core.sampling import FinishReason, SamplingParams
from baton.decode_service.worker import DecodeWorker
from baton.engine.request.step_report import StepReport
from baton.engine.step_hooks import ALONE, StepHooks
from baton.gateway.requests.generations.generation import Generation
from baton.kv_transfer.exchange import ExchangeParts
from baton.kv_transfer.transports import TransportParts, create_transport
from baton.platform.offline.local_dispatcher import LocalDispatcher
from baton.proto.channels import Channels

PROMPT = (5, 6, 7)


def generation(
    name: str = "a", *, max_tokens: int = 4, prompt: tuple[int, ...] = PROMPT
) -> Generation:
    sampling = SamplingParams(temperature=0.0, max_tokens=max_tokens, ignore_eos=True)
    return Generation(request_id=RequestId(name), prompt=prompt, sampling=sampling)


@asynccontextmanager
async def dispatching() -> AsyncIterator[tuple[LocalDispatcher, DecodeWorker]]:
    worker = DecodeWorker(
        echo_engine(),
        ExchangeParts(
            epoch=new_epoch(),
            channels=Channels(),
            transport=create_transport("memory", TransportParts()),
        ),
        replica_id=ReplicaId("local"),
        max_open=128,
    )
    await worker.core.start()
    dispatcher = LocalDispatcher(worker)
    try:
        yield dispatcher, worker
    finally:
        await dispatcher.close()
        await worker.stop()


async def test_tokens_arrive_once_and_the_receipt_with_the_last() -> None:
    async with dispatching() as (dispatcher, _):
        running = await dispatcher.start(generation())
        updates = [update async for update in running]
        await running.stop(4)

    assert sum(len(update.tokens) for update in updates) == 4
    assert [update.finish_reason for update in updates][-1] is FinishReason.LENGTH
    assert (running.receipt.prompt_tokens, running.receipt.output_tokens) == (3, 4)


async def test_stopping_early_frees_everything() -> None:
    async with dispatching() as (dispatcher, worker):
        running = await dispatcher.start(generation(max_tokens=2000))
        first = await anext(aiter(running))

        await running.stop(len(first.tokens))
        await running.stop(len(first.tokens))

        audit = await worker.core.audit()
        assert (audit.live, audit.leased, audit.violations) == (0, 0, ())
        assert (await dispatcher.leaks())["live"] == 0


async def test_an_error_is_raised_where_the_request_is_read() -> None:
    async with dispatching() as (dispatcher, _):
        running = await dispatcher.start(generation(prompt=(1,) * 5000))

        with pytest.raises(InvalidRequest, match="5000 tokens"):
            await anext(aiter(running))


async def test_requests_under_way_learn_that_the_engine_has_stopped() -> None:
    async with dispatching() as (dispatcher, worker):
        engine = worker.core.engine
        step = engine.step

        def only_step(hooks: StepHooks = ALONE) -> StepReport:
            """After it the engine stands still: it would soon have finished."""
            engine.step = lambda hooks=ALONE: StepReport()  # type: ignore[method-assign]
            return step(hooks)

        engine.step = only_step  # type: ignore[method-assign]
        running = await dispatcher.start(generation(max_tokens=2000))
        updates = aiter(running)
        await anext(updates)

        await worker.stop()

        with pytest.raises(Unavailable):
            async with asyncio.timeout(120):
                while True:
                    await anext(updates)
        assert not dispatcher.is_ready()


async def test_it_says_what_a_dispatcher_must() -> None:
    async with dispatching() as (dispatcher, worker):
        assert dispatcher.is_ready()
        assert dispatcher.max_model_len == worker.core.engine.max_model_len
        assert (await dispatcher.status())["num_blocks"] == worker.core.engine.pool.num_blocks
        assert not list(dispatcher.metrics())
