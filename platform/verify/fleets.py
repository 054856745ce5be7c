"""The two ways to an answer, in one process: one engine alone, or one that prefills and one that
decodes, with a real transport between them.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from itertools import cycle

from baton.core.ids import ReplicaId, new_request_id
from baton.core.messages import Receipt
from baton.core.replicas import Role
from baton.core.sampling import SamplingParams, TokenLogprob
from baton.core.wording import count_of
from baton.decode_service.worker import DecodeWorker
from baton.engine.config import EngineConfig
from baton.engine.engine import Engine
from baton.gateway.access.cache_salt import CacheSalts
from baton.gateway.requests.generations.generation import Generation
from baton.kv_transfer.handoff.auditor import AuditReport
from baton.kv_transfer.transports import TransportParts
from baton.platform.config.deployment import DeploymentConfig
from baton.platform.offline.local_dispatcher import LocalDispatcher
from baton.platform.replica.replica import Replica, start_replica
from baton.platform.verify.cases import Prompt

MakeEngine = Callable[[Role, EngineConfig], Engine]

LOOPBACK = "127.0.0.1"
SALTS = CacheSalts("")
SETTLE_TIMEOUT_S = 30.0
"""A busy machine takes its time, and only a leak is waited for so long."""
SETTLE_POLL_S = 0.01


@dataclass(slots=True)
class Answer:
    tokens: list[int] = field(default_factory=list)
    logprobs: list[TokenLogprob] = field(default_factory=list)
    receipt: Receipt = field(default_factory=Receipt)


@dataclass(frozen=True, slots=True)
class Fleet:
    replicas: tuple[Replica, ...]
    """The one that decodes comes first."""
    dispatcher: LocalDispatcher

    @property
    def decode(self) -> DecodeWorker:
        worker = self.replicas[0].worker
        assert isinstance(worker, DecodeWorker)
        return worker

    async def ask(self, prompt: Prompt, sampling: SamplingParams, adapter: str = "") -> Answer:
        generation = Generation(
            request_id=new_request_id(),
            prompt=prompt,
            sampling=sampling,
            salt=SALTS.salt("", "", adapter),
            adapter=adapter,
        )
        running, answer = await self.dispatcher.start(generation), Answer()
        try:
            async for update in running:
                answer.tokens += update.tokens
                answer.logprobs += update.logprobs
        finally:
            await running.stop(len(answer.tokens))
        answer.receipt = running.receipt
        return answer

    async def ask_all(
        self, prompts: Sequence[Prompt], sampling: SamplingParams, *, at_once: bool
    ) -> list[Answer]:
        """With adapters, prompts take turns: the model alone, then each adapter."""
        adapters = cycle(("", *self.decode.core.engine.info.adapters))
        pairs = zip(prompts, adapters, strict=False)
        asked = (self.ask(prompt, sampling, adapter) for prompt, adapter in pairs)
        if at_once:
            return list(await asyncio.gather(*asked))
        return [await each for each in asked]  # begun one by one: none is left if one fails

    async def leaks(self) -> list[str]:
        """What the auditors find once everything has had the time to come to rest."""
        deadline = time.monotonic() + SETTLE_TIMEOUT_S
        while True:
            audits = [(r.info.replica_id, await r.worker.core.audit()) for r in self.replicas]
            found = [f"{name}: {text}" for name, audit in audits for text in _faults(audit)]
            if not found or time.monotonic() > deadline:
                return found
            await asyncio.sleep(SETTLE_POLL_S)


def _faults(audit: AuditReport) -> list[str]:
    held = audit.leased + audit.live + audit.quarantined
    return [*audit.violations, *([f"still held: {count_of(held, 'block')}"] if held else [])]


@asynccontextmanager
async def running_fleet(make_engine: MakeEngine, config: DeploymentConfig) -> AsyncIterator[Fleet]:
    """One decode replica, and one prefill replica if `config` has any."""
    parts, roles = TransportParts(), [Role.DECODE]
    if config.prefill.replicas:
        roles.append(Role.PREFILL)
    async with AsyncExitStack() as stack:
        replicas: list[Replica] = []
        for role in roles:
            replica = await start_replica(
                config,
                role,
                make_engine(role, config.engine(role)),
                replica_id=ReplicaId(role.value),
                host=LOOPBACK,
                parts=parts,
            )
            stack.push_async_callback(replica.stop)
            replicas.append(replica)
        decode = replicas[0].worker
        assert isinstance(decode, DecodeWorker)
        prefill = tuple(replica.info.endpoint for replica in replicas[1:])
        dispatcher = LocalDispatcher(decode, prefill=prefill)
        stack.push_async_callback(dispatcher.close)
        yield Fleet(tuple(replicas), dispatcher)
