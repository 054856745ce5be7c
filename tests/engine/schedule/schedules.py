"""Schedulers without a model or time, over blocks without memory, and requests for them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from zlib import crc32

from tests.engine.no_bytes import NoBytes

from baton.core.clock import ManualClock
from baton.core.kv_pool import Holder, HolderKind
from baton.core.sampling import SamplingParams
from baton.engine.blocks.block_pool import BlockPool
from baton.engine.config import SchedulerConfig
from baton.engine.request.request import Request
from baton.engine.schedule.drafted_chunks import ScheduledChunk
from baton.engine.schedule.scheduler import Scheduler


def make_scheduler(  # what tests vary
    *,
    num_blocks: int = 64,
    block_size: int = 4,
    config: SchedulerConfig | None = None,
    pinned_fraction: float = 0.25,
    kv_shares: Mapping[str, float] | None = None,
    kv_dtype: str = "float32",
) -> Scheduler:
    pool = BlockPool(
        NoBytes(num_blocks, block_size, kv_dtype),
        pinned_fraction=pinned_fraction,
        kv_shares=kv_shares,
        clock=ManualClock(),
    )
    return Scheduler(pool, config or SchedulerConfig())


def make_request(
    name: str,
    *,
    prompt_len: int = 8,
    first_token: int | None = None,
    priority: int = 0,
    tenant: str = "",
) -> Request:
    """Prompts of different names have nothing in common unless `first_token` makes them equal."""
    start = crc32(name.encode()) % 2**20 if first_token is None else first_token
    prompt = [start * 1000 + index for index in range(prompt_len)]
    return Request(
        name,
        prompt,
        sampling=SamplingParams(max_tokens=100),
        salt=tenant.encode(),
        tenant=tenant,
        priority=priority,
    )


def compute(scheduler: Scheduler, chunks: Iterable[ScheduledChunk]) -> None:
    """What the engine does with chunks: compute them, then sample if nothing is pending."""
    for chunk in chunks:
        request = chunk.request
        request.num_computed += chunk.num_tokens
        scheduler.pool.commit(request.holder, request.tokens, request.num_computed, request.salt)
        if not request.num_pending:
            request.append(7)


def planned(chunks: Sequence[ScheduledChunk]) -> dict[str, int]:
    return {chunk.request.request_id: chunk.num_tokens for chunk in chunks}


def adopt(scheduler: Scheduler, request: Request) -> bool:
    """What the engine does with a finished handoff of all known tokens but the last, if any last.

    False if the blocks for it are not to be had.
    """
    lease = Holder(HolderKind.LEASE, request.request_id)
    num_cached = scheduler.pool.reserve(
        lease, request.tokens[:-1], request.salt, tenant=request.tenant
    )
    if num_cached is None:
        return False
    request.num_computed = scheduler.pool.layout.num_lasting(len(request.tokens) - 1)
    if request.num_computed:
        scheduler.pool.hand_over(lease, request.holder)
    else:
        scheduler.pool.release(lease)
    scheduler.add(request)
    return True


def pin(scheduler: Scheduler, name: str, *, prompt_len: int) -> None:
    """Run a prompt, and leave it behind as a cache point."""
    request = make_request(name, prompt_len=prompt_len)
    scheduler.add(request)
    compute(scheduler, scheduler.step())
    assert scheduler.pool.pin(request.holder, prompt_len, 300).num_blocks
    scheduler.finish(request)
