"""The core of a replica of either role: an engine on its thread, and KV transfer.

    start   the tiers, the engine's thread, and the housekeeping: leases expire, followers of the
            cache hear what changed without a step
    stop    the same backwards; the caller has let the requests go

Each role's worker has one, with hooks for steps and failures.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, replace

from baton.core.errors import EngineFailed, Unavailable
from baton.core.ids import TransferId
from baton.core.kv_pool import Census
from baton.core.metrics import Family, Sample
from baton.core.replicas import Capacity
from baton.core.step_times import StepTimes, StepWork
from baton.core.tracing import NO_TRACES
from baton.engine.engine import Engine
from baton.engine.engine_thread import EngineThread
from baton.engine.grammar.matchers import Matchers
from baton.engine.kv_feed import KvFeed
from baton.engine.request.cache_points import cache_metrics
from baton.engine.request.step_report import StepReport
from baton.engine.step_hooks import ALONE, StepHooks
from baton.kv_transfer.exchange import EngineCalls, ExchangeParts, KvExchange
from baton.kv_transfer.handoff.auditor import AuditReport, audit, tally
from baton.replica_core.step_meter import StepMeter

log = logging.getLogger(__name__)

EXPIRY_CHECK_S = 0.25
REST_CHECK_S = 1.0
"""While nothing is computed, and nobody waits for KV or fetches it: a lease lives for longer."""
STOP_TIMEOUT_S = 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class RoleHooks:
    """The differences between the roles. All hooks except `on_tick` are called on the engine's
    thread."""

    on_tick: Callable[[], None]
    """Called periodically on the event loop, with or without steps."""
    on_step: Callable[[StepReport], None]
    on_failure: Callable[[BaseException], None]
    before_commands: Callable[[], None] | None = None
    """See `EngineThread`."""
    in_step: StepHooks = ALONE
    """`reclaim`, `held_tenants` and `between_layers` are not the role's to say."""
    on_transfer_ended: Callable[[TransferId], None] = lambda _: None
    """Called when a transfer of KV that leaves has ended: see `EngineCalls`."""
    is_full: Callable[[], bool] = lambda: False
    """See `PrefixFetcher`."""


@dataclass(slots=True)
class TokenLedger:
    """Accounts for every sampled token: per incarnation, sampled = delivered + discarded + in
    flight.

    A token is *delivered* when it has been passed on towards the client, *discarded* when it is not
    wanted any more (cancelled, after a stop string, fenced by a higher attempt). When a replica is
    idle nothing is in flight, and the books must balance.
    """

    sampled: int = 0
    delivered: int = 0
    discarded: int = 0

    @property
    def in_flight(self) -> int:
        return self.sampled - self.delivered - self.discarded

    def sample(self, num_tokens: int) -> None:
        self.sampled += num_tokens

    def settle(self, *, delivered: int, discarded: int) -> None:
        """Close the account of one request, or of a part of it.

        Raises ValueError if more tokens would leave than were sampled.
        """
        if delivered < 0 or discarded < 0 or delivered + discarded > self.in_flight:
            raise ValueError(f"{delivered=} {discarded=} of {self.in_flight} tokens in flight")
        self.delivered += delivered
        self.discarded += discarded

    def as_metrics(self) -> dict[str, float]:
        """Token counts by Prometheus name."""
        return {
            "tokens_sampled_total": self.sampled,
            "tokens_delivered_total": self.delivered,
            "tokens_discarded_total": self.discarded,
        }


class ReplicaCore:
    def __init__(self, engine: Engine, parts: ExchangeParts, hooks: RoleHooks) -> None:
        self.engine = engine
        self.epoch = parts.epoch
        self.is_draining = False
        self.is_shut = False
        """No request begins here, and nobody is lent KV: it is about to leave its role."""
        self.ledger = TokenLedger()
        self.thread = EngineThread(
            engine,
            self._on_step,
            on_failure=hooks.on_failure,
            before_commands=hooks.before_commands,
            hooks=replace(hooks.in_step, reclaim=self._reclaim, held_tenants=self._held_tenants),
        )
        self.kv_feed = KvFeed(engine.pool, self.thread)
        self.kv = KvExchange(
            parts,
            pool=engine.pool,
            owner=self.thread,
            clock=engine.clock,
            engine=EngineCalls(
                on_transfer_ended=hooks.on_transfer_ended,
                is_full=hooks.is_full,
                compute_s=self.compute_s,
            ),
        )
        self.matchers = Matchers(engine.grammars)
        self._hooks = hooks
        self.meter = StepMeter()
        self.tracer = NO_TRACES
        """Set by the owner, before the first request."""
        self._last_work = StepWork()
        self._huge = engine.huge
        self._housekeeping: asyncio.Task[None] | None = None

    async def start(self) -> None:
        self.kv.start()
        self.thread.start()
        if self._huge is not None:
            self._huge.start(lambda: self.engine.has_work)
        self._housekeeping = asyncio.create_task(self._run_housekeeping())

    async def stop(self) -> None:
        if self._housekeeping is not None:
            self._housekeeping.cancel()
        if self._huge is not None:  # first: whatever fails below, the arena is left alone
            await asyncio.to_thread(self._huge.stop)
        self.matchers.close()
        await self.kv.close()
        await asyncio.to_thread(self.thread.stop, STOP_TIMEOUT_S)

    def check_health(self, *, limit_s: float) -> None:
        """Raise EngineFailed if the engine's thread died or has not advanced for `limit_s`, or if
        a write of KV to its blocks hangs for so long: they can be nobody else's before it ends."""
        self.thread.check_health(limit_s=limit_s)
        written_s = self.kv.receiver.longest_quarantine_s
        if written_s > limit_s:
            raise EngineFailed(
                f"KV has been written for {written_s:.0f} s to blocks that were given up"
            )

    def check_open(self) -> None:
        """Raises Unavailable if nothing may begin here."""
        if self.is_shut:
            raise Unavailable("it leaves its role at this moment; ask another replica")

    async def audit(self) -> AuditReport:
        """Judged off the engine's thread: a large pool takes longer than a step."""
        return await asyncio.to_thread(audit, *await self.thread.call(self._take_census))

    async def reset_prefix_cache(self) -> int:
        """Empty the prefix cache; return the blocks dropped. Raises EngineFailed."""

        def reset() -> int:
            num_blocks = self.engine.pool.reset_cache()
            self.kv_feed.publish()
            return num_blocks

        return await self.thread.call(reset)

    async def tally(self) -> AuditReport:
        """The audit's numbers, at once, and no judgement."""
        return tally(await self.thread.call(self.engine.pool.holdings))

    def capacity(
        self, *, max_open: int, num_running: int, num_waiting: int, num_queued_tokens: int
    ) -> Capacity:
        return Capacity(
            max_open=max_open,
            num_context_tokens=self._last_work.num_context if num_running else 0,
            slowness=round(self.thread.step_fit.slowness(self.engine.clock()), 1),
            num_running=num_running,
            num_waiting=num_waiting,
            num_queued_tokens=num_queued_tokens,
            num_blocks=self.engine.pool.num_blocks,
            num_free_blocks=self.engine.pool.num_available,
            is_draining=self.is_draining,
        )

    def step_times(self) -> StepTimes:
        return self.thread.step_fit.times(self.engine.clock())

    def compute_s(
        self, num_tokens: int, num_here: int, unmeasured_token_s: float = math.inf
    ) -> float:
        """Seconds in which this engine, if nobody waits for it, would compute what follows the
        first `num_here` tokens of a prompt; `unmeasured_token_s` each while it has measured
        none."""
        if self.engine.num_waiting:
            return math.inf
        times = self.step_times()
        if times.num_prompt_steps:
            return times.prefill_s(num_tokens, num_here, self.engine.max_chunk)
        return max(1, num_tokens - num_here) * unmeasured_token_s

    def metrics(self) -> dict[str, float]:
        """Metrics by Prometheus name."""
        speculation = self.engine.speculation
        return {
            **self._pace_metrics(),
            **self.engine.stats.as_metrics(),
            **cache_metrics(self.engine.pool),
            **self.ledger.as_metrics(),
            **self.kv.metrics(),
            **({} if speculation is None else speculation.metrics()),
            **({} if self._huge is None else {"kv_huge_page_bytes": self._huge.num_bytes}),
        }

    def families(self) -> Iterator[Family]:
        """Metric families, in addition to single numbers."""
        pool, num_leased = self.engine.pool, self.kv.num_leased_blocks
        num_free = pool.supply.num_free
        num_cached = max(0, pool.num_available - num_free)
        blocks = {
            "free": num_free,
            "cached": num_cached,
            "leased": num_leased,
            "live": max(0, pool.num_blocks - num_free - num_cached - num_leased),
        }
        yield Family(
            "baton_replica_kv_blocks",
            "gauge",
            "Blocks of KV, each once: what nobody uses, what is only cached, what handoffs hold, "
            "and what requests do",
            [Sample({"state": state}, number) for state, number in blocks.items()],
        )
        yield from self.meter.families()
        yield from self.kv.families()

    def _pace_metrics(self) -> dict[str, float]:
        """How fast its steps are said to be; nothing before the first."""
        times, chunk = self.step_times(), self.engine.max_chunk
        if not times.is_known:
            return {}
        num_running, num_context = max(1, self.engine.num_running), self._last_work.num_context
        return {
            "prefill_tokens_per_second": chunk / times.prefill_s(chunk, 0, chunk),
            "decode_tokens_per_second": num_running / times.decode_s(num_running, num_context),
            "slowness": self.thread.step_fit.slowness(self.engine.clock()),
            "step_constant_seconds": times.constant_s,
            "step_token_seconds": times.token_s,
            "step_pair_seconds": times.pair_s,
            "step_context_seconds": times.context_s,
            "step_request_seconds": times.request_s,
            "max_chunk_tokens": chunk,
            "kv_block_tokens": self.engine.pool.layout.block_size,
            "kv_block_bytes": self.engine.pool.layout.block_bytes,
            "kv_block_feature_bytes": self.engine.pool.layout.feature_bytes,
            "step_times_spread": times.spread,
            "step_times_age_seconds": times.age_s,
        }

    async def _run_housekeeping(self) -> None:
        while self.thread.failure is None:
            is_at_rest = not (self.engine.has_work or self.kv.num_leased_blocks)
            await asyncio.sleep(REST_CHECK_S if is_at_rest else EXPIRY_CHECK_S)
            await self.thread.call(self.kv.expire)
            self.thread.post(self.kv_feed.publish)  # report changes between steps
            try:
                self._hooks.on_tick()
            except Exception:  # leases expire without steps, too
                log.exception("a tick failed")

    # On the engine's thread.

    def _on_step(self, report: StepReport) -> None:
        self._last_work = report.work
        self._hooks.on_step(report)  # first: tokens are waited for
        self.meter.ran(report)
        self.kv.ran(report.num_tokens, report.forward_ms / 1e3)
        self.kv_feed.publish()

    def _reclaim(self, tenant: str | None) -> bool:
        return self.kv.reclaim(tenant)

    def _held_tenants(self) -> Collection[str]:
        return self.kv.sender.held.tenants

    def _take_census(self) -> tuple[Census, frozenset[str], frozenset[TransferId]]:
        """The block census, with the requests and the leases that may hold blocks at this
        moment."""
        return self.engine.pool.census(), self.engine.request_ids, self.kv.lease_ids
