"""The tiers of one replica, wired to its pool.

    leaves    pool --named--> WriteBack --> TierStack
    returns   TierStack --> TierTransport --> Fetcher --> a lease --> cached blocks of the pool

Only blocks that are worth it are brought in, and for no longer than the deadline. A failure is a
note: the prompt is computed instead.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace

from baton.core.clock import Clock
from baton.core.ids import TransferId
from baton.core.kv_pool import KvPool
from baton.core.owner_thread import OwnerThread
from baton.core.wording import count_of
from baton.kv_transfer.pulling.prefix_fetch import FetchedPrefix, PrefixFetcher
from baton.kv_transfer.receiving.fetch import Fetcher
from baton.kv_transfer.receiving.receiver import Receiver
from baton.kv_transfer.tiers.config import TiersConfig
from baton.kv_transfer.tiers.source import ReadPolicy, TierSource
from baton.kv_transfer.tiers.stack import TierStack
from baton.kv_transfer.tiers.transport import TierTransport
from baton.kv_transfer.tiers.worth import Rate
from baton.kv_transfer.tiers.write_back import WriteBack

MAX_ATTEMPTS = 2
"""The second one is for a block that the first found broken or gone: less is found then."""
MIN_TIMED_TOKENS = 32
"""A step of fewer tokens says how fast decoding is, not how fast prompts are computed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolParts:
    """What tiers need of the replica they belong to."""

    pool: KvPool
    owner: OwnerThread
    receiver: Receiver
    clock: Clock
    is_full: Callable[[], bool] = lambda: False
    """See `PrefixFetcher`."""


class Tiers:
    """Belongs to one event loop, but for `ran` and `lease_ids`: these to the owner's thread."""

    def __init__(self, stack: TierStack, parts: PoolParts, config: TiersConfig) -> None:
        self.stack = stack
        self.num_tokens = 0
        """Brought in so far."""
        self.num_late = 0
        """Prompts that were computed because the tiers took too long."""
        self._pool = parts.pool
        self._config = config
        self._transport = TierTransport(stack)
        self._fetcher = Fetcher(parts.receiver, parts.owner, self._transport, clock=parts.clock)
        self._prefixes = PrefixFetcher(
            pool=parts.pool,
            owner=parts.owner,
            receiver=parts.receiver,
            fetcher=self._fetcher,
            timeout_s=config.deadline_s,
            clock=parts.clock,
            is_full=parts.is_full,
        )
        self._write_back = WriteBack(
            parts.pool, parts.owner, stack, max_held_blocks=config.max_held_blocks
        )
        self._read_policy = ReadPolicy(
            min_tokens=config.min_tokens,
            read_bytes={name: Rate(parts.clock) for name in stack.tier_names},
            computed_tokens=Rate(parts.clock),
        )
        self._promoting: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Before the engine's thread is."""
        self.stack.start()
        self._pool.follow(self._write_back)

    async def close(self) -> None:
        """While the engine's thread still runs: it lets go of what is being copied."""
        if self._promoting is not None:
            self._promoting.cancel()
        await asyncio.to_thread(self._write_back.close)
        await self._fetcher.close()
        await self._transport.close()
        await self.stack.close()

    @asynccontextmanager
    async def bring_in(
        self, tokens: Sequence[int], salt: bytes, *, tenant: str = ""
    ) -> AsyncIterator[FetchedPrefix]:
        """Within the context what was worth it of `tokens` is in the pool's cache, and held."""
        async with AsyncExitStack() as held:
            yield await self._bring_in(tokens, salt, held, tenant=tenant)

    def metrics(self) -> dict[str, float]:
        """Metrics by Prometheus name."""
        return {
            **self.stack.metrics(),
            "tier_tokens_brought_in_total": self.num_tokens,
            "tier_late_total": self.num_late,
            "tier_write_back_waiting": self._write_back.num_waiting,
            "tier_write_back_missed_total": self._write_back.num_missed,
        }

    # On the owner's thread.

    @property
    def lease_ids(self) -> frozenset[TransferId]:
        """The leases of blocks that are being copied, for the auditor."""
        return self._write_back.lease_ids

    def ran(self, num_tokens: int, seconds: float) -> None:
        """The engine ran so many tokens in one step: how fast prompts are computed."""
        if num_tokens >= MIN_TIMED_TOKENS:
            self._read_policy.computed_tokens.observe(num_tokens, seconds)

    # On the event loop.

    async def _bring_in(
        self, tokens: Sequence[int], salt: bytes, held: AsyncExitStack, *, tenant: str
    ) -> FetchedPrefix:
        source, notes = self._source(), list[str]()
        brought_in = FetchedPrefix()
        try:
            async with asyncio.timeout(self._config.deadline_s):
                for _ in range(MAX_ATTEMPTS):
                    source = self._source()
                    entering = self._prefixes.bring_in(tokens, salt, source, tenant=tenant)
                    brought_in = await held.enter_async_context(entering)
                    notes += filter(None, [brought_in.note])
                    if brought_in.num_new or not brought_in.note:
                        break
                    await self.stack.recheck(source.names)
        except TimeoutError:
            self.num_late += 1
            self._observe(source, self._config.deadline_s)
            notes.append(f"the tiers took longer than {self._config.deadline_s:g} s")
            brought_in = FetchedPrefix()
        if brought_in.num_new:
            self.num_tokens += brought_in.num_new
            self._observe(source, brought_in.report.transfer_ms / 1e3 if brought_in.report else 0)
            tiers = " and ".join(source.tiers)
            notes.append(f"swapped in {count_of(brought_in.num_new, 'token')} from {tiers}")
        elif notes:
            self._read_ahead(source)
        return replace(brought_in, note="; ".join(notes))

    def _source(self) -> TierSource:
        return TierSource(self.stack, self._transport, self._read_policy)

    def _observe(self, source: TierSource, seconds: float) -> None:
        """A tier's rate is that of a whole swap-in, for which the slowest one answers."""
        if source.tiers:
            self._read_policy.read_bytes[source.tiers[-1]].observe(source.num_bytes, seconds)

    def _read_ahead(self, source: TierSource) -> None:
        """Read KV that is wanted but cannot come in now into the fastest tier."""
        is_slow = len(self.stack.tier_names) > 1 and source.tiers != self.stack.tier_names[:1]
        is_busy = self._promoting is not None and not self._promoting.done()
        if source.names and is_slow and not is_busy:
            self._promoting = asyncio.create_task(self.stack.promote(source.names))
