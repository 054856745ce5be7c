"""Prefill and decode replicas, registry and dispatcher in one process: everything but Ray and HTTP.

The replicas are the real ones, with their gRPC servers on localhost.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Sequence
from contextlib import AbstractContextManager, asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from functools import cache
from typing import Any

from tests.gateway.fleet.scripted_replica import PATIENT

from baton.core.ids import ReplicaId, new_request_id
from baton.core.messages import Receipt
from baton.core.replicas import Role
from baton.core.sampling import FinishReason, SamplingParams, TokenLogprob
from baton.engine.config import CacheConfig, EngineConfig, SchedulerConfig
from baton.engine.engine import Engine
from baton.engine.passes.echo import EchoRunner, echo_info
from baton.engine.request.step_report import StepReport
from baton.engine.step_hooks import ALONE, StepHooks
from baton.gateway.fleet.dispatch import ReplicaDispatcher
from baton.gateway.requests.generations.generation import Generation
from baton.platform.config.deployment import DeploymentConfig, override
from baton.platform.registry.registry import Registry
from baton.platform.replica.replica import Replica, start_replica
from baton.platform.security.connections import load_security
from baton.prefill_service.worker import PrefillWorker
from baton.proto.channels import Channels
from baton.proto.pulse import PingTiming
from baton.router.placer import Routing
from baton.router.policies.cost import Cost

GREEDY = SamplingParams(temperature=0.0, max_tokens=12)
VOCAB_SIZE = 256

EngineFactory = Callable[[Role], Engine]


def echo_engine(
    role: Role = Role.DECODE,
    *,
    num_blocks: int = 256,
    block_size: int = 4,
    prefill_chunk: int | None = None,
    max_running: int = 64,
    num_layers: int = 3,
) -> Engine:
    info = echo_info(vocab_size=VOCAB_SIZE, max_model_len=2048, num_layers=num_layers)
    config = EngineConfig(
        cache=CacheConfig(block_size=block_size, num_blocks=num_blocks),
        scheduler=SchedulerConfig(prefill_chunk=prefill_chunk, max_running=max_running),
    )
    return Engine(EchoRunner(info, num_blocks=num_blocks, block_size=block_size), config)


@dataclass(slots=True)
class Answer:
    tokens: list[int] = field(default_factory=list)
    logprobs: list[TokenLogprob] = field(default_factory=list)
    prompt_logprobs: list[TokenLogprob] = field(default_factory=list)
    embedding: tuple[float, ...] = ()
    finish_reason: FinishReason | None = None
    receipt: Receipt = field(default_factory=Receipt)


@dataclass(slots=True)
class Fleet:
    config: DeploymentConfig
    make_engine: EngineFactory
    registry: Registry
    dispatcher: ReplicaDispatcher
    replicas: dict[ReplicaId, Replica] = field(default_factory=dict)
    engines: dict[ReplicaId, Engine] = field(default_factory=dict)
    num_started: int = 0

    async def add(self, role: Role) -> ReplicaId:
        self.num_started += 1
        replica_id = ReplicaId(f"{role}-{self.num_started}")
        engine = self.make_engine(role)
        replica = await start_replica(
            self.config, role, engine, replica_id=replica_id, host="127.0.0.1"
        )
        if isinstance(replica.worker, PrefillWorker):
            groups = replica.worker.publisher.layer_groups
            groups.min_bytes = 0  # each layer leaves as if it were large
        self.replicas[replica_id] = replica
        self.engines[replica_id] = engine
        await self.sync()
        return replica_id

    async def crash(self, replica_id: ReplicaId) -> None:
        """Cut all its streams at once and tell nobody: as close to kill -9 as a thread comes."""
        replica = self.replicas.pop(replica_id)
        await replica.server.stop(grace_s=0)
        await replica.stop()
        self.registry.leave(replica.info.epoch)

    async def sync(self) -> None:
        """Tell the dispatcher who is there, and wait until it is connected to them."""
        for replica in self.replicas.values():  # or those it has not heard of for long are gone
            self.registry.heartbeat(replica.info)
        await self.dispatcher.fleet.apply(self.registry.membership())
        roles = [replica.info.role for replica in self.replicas.values()]
        fleet = self.dispatcher.fleet
        async with asyncio.timeout(120):  # a busy machine takes its time
            while len(fleet.connected) < roles.count(Role.DECODE) or (
                len(fleet.lending) < roles.count(Role.PREFILL)
            ):
                await asyncio.sleep(0.01)

    async def ask(
        self,
        prompt: Sequence[int],
        sampling: SamplingParams = GREEDY,
        *,
        on_token: Callable[[int], Any] | None = None,
        **options: Any,
    ) -> Answer:
        """One request from start to end. `on_token(n)` may return an awaitable."""
        generation = Generation(
            request_id=new_request_id(), prompt=tuple(prompt), sampling=sampling, **options
        )
        answer = Answer()
        running = await self.dispatcher.start(generation)
        try:
            async for update in running:
                answer.tokens += update.tokens
                answer.logprobs += update.logprobs
                answer.prompt_logprobs += update.prompt_logprobs
                answer.embedding += update.embedding
                answer.finish_reason = update.finish_reason
                if on_token is not None:
                    pending = on_token(len(answer.tokens))
                    if pending is not None:
                        await pending
        finally:
            await running.stop(len(answer.tokens))
        answer.receipt = running.receipt
        return answer

    async def ask_all(
        self, askings: Sequence[Coroutine[Any, Any, Answer]], *, at: ReplicaId, first: Sequence[int]
    ) -> list[Answer]:
        """All at once, but `first` ones, in this order, are all at a replica before it runs any.

        What only happens between requests that run together does not depend on who is faster.
        """
        tasks: dict[int, asyncio.Task[Answer]] = {}
        with self.standing_still(at) as engine:
            for index in first:
                tasks[index] = asyncio.create_task(askings[index])
                await until_in_engine(engine, len(tasks))
        return await asyncio.gather(*(tasks.get(i, asking) for i, asking in enumerate(askings)))

    @contextmanager
    def standing_still(self, at: ReplicaId) -> Iterator[Engine]:
        """A replica that takes requests in meanwhile, and runs none."""
        engine = self.engines[at]
        step, engine.step = engine.step, _suspend  # type: ignore[method-assign]
        try:
            yield engine
        finally:
            engine.step = step  # type: ignore[method-assign]
            self.replicas[at].worker.core.thread.post(lambda: None)  # there is work now

    @contextmanager
    def halting(self, is_far: Callable[[Engine], bool]) -> Iterator[Callable[[], None]]:
        """Decode replicas take requests in, but run none once `is_far`, until what is yielded is
        called: however late the client is, what it asked for is not done before.
        """
        may_go_on = threading.Event()

        def halt(engine: Engine) -> Callable[..., StepReport]:
            step = engine.step

            def halting(hooks: StepHooks = ALONE) -> StepReport:
                return step(hooks) if may_go_on.is_set() or not is_far(engine) else StepReport()

            return halting

        def go_on() -> None:
            may_go_on.set()
            for replica in self.replicas.values():
                replica.worker.core.thread.post(lambda: None)  # there is work now

        for replica_id, replica in self.replicas.items():
            if replica.info.role is Role.DECODE:
                engine = self.engines[replica_id]
                engine.step = halt(engine)  # type: ignore[method-assign]
        try:
            yield go_on
        finally:
            go_on()

    def halting_at(self, num_tokens: int) -> AbstractContextManager[Callable[[], None]]:
        """See `halting`: once a request has so many tokens."""
        return self.halting(lambda engine: most_tokens(engine) >= num_tokens)

    def admit_no_prompts(self) -> None:
        """Prefill replicas refuse whatever comes, as if too much were queued there."""
        for replica in self.replicas.values():
            if isinstance(replica.worker, PrefillWorker):
                replica.worker.prompts.max_queued_tokens = 0

    async def assert_nothing_is_held(self, timeout_s: float = 20.0) -> None:
        """Every block of every replica comes back, and the books balance.

        Sooner than leases expire, by themselves, that nobody gives up.
        """
        async with asyncio.timeout(timeout_s):
            while True:
                audits = [await replica.worker.core.audit() for replica in self.replicas.values()]
                is_held = any(a.leased or a.live or a.quarantined for a in audits)
                if not is_held and not any(map(_num_in_flight, self.replicas.values())):
                    break
                await asyncio.sleep(0.02)
        assert [a.violations for a in audits] == [()] * len(audits)


def most_tokens(engine: Engine) -> int:
    """That any of its requests has; on its thread."""
    return max((len(request.output) for request in engine._request_by_id.values()), default=0)


def _num_in_flight(replica: Replica) -> float:
    """Tokens that were sampled, and neither delivered nor discarded."""
    books = replica.worker.metrics()
    settled = books["tokens_delivered_total"] + books["tokens_discarded_total"]
    return books["tokens_sampled_total"] - settled


async def until_in_engine(engine: Engine, num_requests: int) -> None:
    async with asyncio.timeout(120):  # a busy machine takes its time
        while len(engine.request_ids) < num_requests:
            await asyncio.sleep(0.002)


@cache
def _by_grpc() -> DeploymentConfig:
    return override(DeploymentConfig(), {"transfer.transport": "grpc"})


def _suspend(hooks: StepHooks = ALONE) -> StepReport:
    return StepReport()


@asynccontextmanager
async def running_fleet(
    *,
    prefill: int = 1,
    decode: int = 1,
    make_engine: EngineFactory = echo_engine,
    changes: dict[str, Any] | None = None,
    local_prefill_tokens: int = 0,
    ping_timing: PingTiming = PATIENT,
    **admission: Any,
) -> AsyncIterator[Fleet]:
    """`ping_timing`: when the gateway takes a replica for silent. `admission`: what
    `ReplicaDispatcher` is told about waiting, where it matters."""
    # Not `auto`: the same way every time, and no probes that hold blocks meanwhile.
    config = override(_by_grpc(), changes) if changes else _by_grpc()
    registry = Registry()
    dispatcher = ReplicaDispatcher(
        Routing(Cost(), local_prefill_tokens=local_prefill_tokens),
        kept_decisions=100,
        channels=Channels(load_security(config.security), ping_timing=ping_timing),
        **{"max_waiting": 100, "no_replica_grace_s": 120.0, **admission},
    )
    fleet = Fleet(config, make_engine, registry, dispatcher)
    try:
        for role, count in ((Role.PREFILL, prefill), (Role.DECODE, decode)):
            for _ in range(count):
                await fleet.add(role)
        yield fleet
    finally:
        await dispatcher.fleet.close()
        for replica in fleet.replicas.values():
            await replica.stop()
