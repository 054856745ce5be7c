"""Everything by which KV enters and leaves one replica, of either role.

    receives   Receiver <- Fetcher <- any transport      handoffs; what PrefixFetcher fetches
    sends      Sender -> Outbox -> any transport         handoffs; what Lender lends to peers
    asks       PeerClient -> a peer's Lender
    keeps      Tiers: blocks that leave this pool, until they are wanted again

Both sides share one pool, one epoch and one set of books: leases, expiry, memory pressure.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from math import inf

from baton.core.clock import Clock
from baton.core.errors import TransferError
from baton.core.ids import Epoch, TransferId
from baton.core.kv_pool import KvPool
from baton.core.metrics import Family
from baton.core.owner_thread import OwnerThread
from baton.core.replicas import ReplicaAddress
from baton.kv_transfer.config import DEFAULTS, ExchangeConfig
from baton.kv_transfer.handoff.scores import SourceScores
from baton.kv_transfer.handoff.transport import Transport
from baton.kv_transfer.pulling.lending import Lender
from baton.kv_transfer.pulling.peer import PeerClient
from baton.kv_transfer.pulling.prefix_fetch import FetchedPrefix, PrefixFetcher
from baton.kv_transfer.receiving.fetch import Fetcher
from baton.kv_transfer.receiving.receiver import AbortReason, Receiver, ReceiverConfig
from baton.kv_transfer.receiving.source_patience import MissingKv, SourcePatience
from baton.kv_transfer.sending.outbox import Outbox
from baton.kv_transfer.sending.sender import Sender, SenderConfig
from baton.kv_transfer.tiers.config import TiersConfig
from baton.kv_transfer.tiers.stack import TierStack
from baton.kv_transfer.tiers.tiers import PoolParts, Tiers
from baton.proto.channels import Channels


@dataclass(frozen=True, slots=True, kw_only=True)
class ExchangeParts:
    """What the exchange of a replica is made of, whatever its role."""

    epoch: Epoch
    transport: Transport
    """How KV comes here."""
    channels: Channels
    config: ExchangeConfig = DEFAULTS
    stack: TierStack | None = None
    """Tiers that keep KV which leaves the pool, if there are any."""
    tiers: TiersConfig = field(default_factory=TiersConfig)
    may_reserve: Callable[[], bool] = lambda: True
    """See `Receiver`."""
    may_keep: Callable[[], bool] = lambda: True
    """See `Sender`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineCalls:
    """What the exchange asks, and tells, the engine whose pool it is."""

    on_transfer_ended: Callable[[TransferId], None] = lambda _: None
    """Called for each transfer that has left, on the owner's thread."""
    is_full: Callable[[], bool] = lambda: False
    """See `PrefixFetcher`."""
    compute_s: Callable[[int, int], float] = lambda num_tokens, num_here: inf
    """Seconds in which it would compute what follows the first `num_here` tokens of a prompt."""


NO_ENGINE = EngineCalls()


class KvExchange:
    def __init__(
        self,
        parts: ExchangeParts,
        *,
        pool: KvPool,
        owner: OwnerThread,
        clock: Clock,
        engine: EngineCalls = NO_ENGINE,
    ) -> None:
        config, timeout_s = parts.config, parts.config.prefill_timeout_s
        self.pool = pool
        self.owner = owner
        self.epoch = parts.epoch
        self.transport = parts.transport
        self._clock = clock
        self._engine = engine
        leases = ReceiverConfig(max_leased_fraction=config.max_leased_fraction)
        self.receiver = Receiver(pool, parts.epoch, leases, may_reserve=parts.may_reserve)
        self.scores = SourceScores(max_corrupt=config.max_corrupt)
        self.patience = SourcePatience()
        self.fetcher = Fetcher(
            self.receiver, owner, parts.transport, clock=clock, scores=self.scores
        )
        self.prefixes = PrefixFetcher(
            pool=pool,
            owner=owner,
            receiver=self.receiver,
            fetcher=self.fetcher,
            timeout_s=timeout_s,
            clock=clock,
            is_full=engine.is_full,
        )
        self.peers = PeerClient(
            parts.channels,
            epoch=parts.epoch,
            layout=pool.layout,
            timeout_s=timeout_s,
            patience=self.patience,
            left=self._left,
        )
        self.tiers = None if parts.stack is None else self._tiers(parts.stack, parts.tiers)
        limits = SenderConfig(max_time_left_s=timeout_s, max_held_fraction=config.max_held_fraction)
        self.sender = Sender(
            pool, parts.epoch, limits, on_ended=self._ended, may_keep=parts.may_keep
        )
        self.outbox = Outbox(self.sender, owner)
        self.lender = Lender(
            pool,
            self.sender,
            owner,
            clock=clock,
            bring_in=None if self.tiers is None else self.tiers.bring_in,
        )

    def _tiers(self, stack: TierStack, config: TiersConfig) -> Tiers:
        pool_parts = PoolParts(
            pool=self.pool,
            owner=self.owner,
            receiver=self.receiver,
            clock=self._clock,
            is_full=self._engine.is_full,
        )
        return Tiers(stack, pool_parts, config)

    def start(self) -> None:
        """Keep KV in the tiers from now on. Before the owner's thread is started."""
        if self.tiers is not None:
            self.tiers.start()

    @asynccontextmanager
    async def prefix_of(
        self,
        known: Sequence[int],
        salt: bytes,
        sources: Sequence[ReplicaAddress] = (),
        *,
        tenant: str = "",
    ) -> AsyncIterator[FetchedPrefix]:
        """Within the context, what the tiers and `sources` hold of `known` is in the prefix cache.

        All but the last token, that is, which is computed in any case, and full blocks only. Each
        source is asked for what is still missing after those before it.
        """
        size = self.pool.layout.block_size
        wanted = known[: (len(known) - 1) // size * size]
        brought_in = FetchedPrefix()
        if not (wanted and self.pool.is_prefix_caching):
            yield brought_in
            return
        async with AsyncExitStack() as held:
            if self.tiers is not None:
                swapping = self.tiers.bring_in(wanted, salt, tenant=tenant)
                brought_in = await held.enter_async_context(swapping)
            for source in sources:
                if source.epoch == self.epoch or self.why_avoided(source):
                    continue
                peer = self.peers.source(source, tenant=tenant)
                pulling = self.prefixes.bring_in(wanted, salt, peer, tenant=tenant)
                brought_in = brought_in.then(await held.enter_async_context(pulling))
                if brought_in.num_tokens == len(wanted):
                    break
            yield brought_in

    def _left(self, transfer_id: TransferId, num_tokens: int, num_held: int) -> MissingKv:
        """What of a pull has not come: all that was asked for, until there are blocks for it."""
        try:
            filling = self.receiver.filling(transfer_id)
        except TransferError:
            return MissingKv(here_s=self._engine.compute_s(num_tokens, num_held))
        here_s = self._engine.compute_s(len(filling.wanted.tokens), filling.num_verified)
        return MissingKv(filling.num_missing_bytes, here_s)

    def why_avoided(self, source: ReplicaAddress) -> str:
        """Why KV should not be asked for there now; empty if nothing is against it."""
        stuck = self.patience.why_avoided(source.epoch, asyncio.get_running_loop().time())
        return self.scores.why_avoided(source.epoch, self._clock()) or stuck

    async def close(self) -> None:
        """Return when every sender has been told how its transfers ended."""
        if self.tiers is not None:
            await self.tiers.close()
        await self.fetcher.close()
        await self.peers.calls.close()
        await self.transport.close()

    @property
    def num_leased_blocks(self) -> int:
        """Blocks that wait for KV, or for a peer to fetch theirs; shared prefixes do not count."""
        return self.receiver.num_leased_blocks + self.sender.held.num_blocks

    def families(self) -> tuple[Family, ...]:
        """Metric families, beside the metrics that are single numbers."""
        return self.fetcher.seconds.family(), self.fetcher.num_bytes.family()

    def metrics(self) -> dict[str, float]:
        """Metrics by Prometheus name."""
        sent, received = self.sender.counters, self.receiver.counters
        return {
            **(self.tiers.metrics() if self.tiers is not None else {}),
            **self.scores.metrics(self._clock()),
            "handoff_blocks_held": self.sender.held.num_blocks,
            "transfers_offered_total": sent.num_offered,
            "transfers_sealed_total": sent.num_sealed,
            "transfers_expired_total": sent.num_expired,
            "transfers_reserved_total": received.num_reserved,
            "transfers_refused_total": received.num_refused,
            "transfers_adopted_total": received.num_adopted,
            **self._aborted(),
            "pieces_corrupt_total": received.num_corrupt.total(),
            "pieces_asked_again_total": received.num_asked_again,
            "kv_tokens_kept_total": received.num_kept_tokens,
            "kv_bytes_received_total": received.num_bytes,
            "kv_bytes_sent_total": self.outbox.num_bytes_sent,
            "tokens_lent_total": self.lender.num_lent_tokens,
            **self._lease_metrics(),
        }

    def _aborted(self) -> dict[str, float]:
        """Aborted transfers by reason, all from the start, for what was never counted has no rate.
        A sender knows only that the receiver gave up, or went silent."""
        name, by_reason = "transfers_aborted_total", self.receiver.counters.num_aborted
        return {
            f'{name}{{side="sending"}}': self.sender.counters.num_aborted,
            **{
                f'{name}{{side="receiving",reason="{reason.name.lower()}"}}': by_reason[reason]
                for reason in AbortReason
            },
        }

    def _lease_metrics(self) -> dict[str, float]:
        now = self._clock()
        ages = {"sending": self.sender.lease_ages(now), "receiving": self.receiver.lease_ages(now)}
        return {
            **{f'leases{{side="{side}"}}': len(of_side) for side, of_side in ages.items()},
            **{
                f'oldest_lease_seconds{{side="{side}"}}': max(of_side, default=0.0)
                for side, of_side in ages.items()
            },
        }

    # On the owner's thread.

    def _ended(self, transfer_id: TransferId) -> None:
        self.lender.ended(transfer_id)
        self._engine.on_transfer_ended(transfer_id)

    @property
    def lease_ids(self) -> frozenset[TransferId]:
        """Transfers that may hold blocks, for the auditor."""
        copied = self.tiers.lease_ids if self.tiers is not None else frozenset[TransferId]()
        return self.sender.lease_ids | self.receiver.lease_ids | copied

    def ran(self, num_tokens: int, seconds: float) -> None:
        """The engine ran so many tokens in one step."""
        if self.tiers is not None:
            self.tiers.ran(num_tokens, seconds)

    def reclaim(self, tenant: str | None = None) -> bool:
        """Under memory pressure: give up what has cost nothing yet, then what others borrowed.

        Of `tenant` alone, if one is given.
        """
        return self.receiver.abort_youngest_reserved(tenant) or self.lender.call_back(tenant)

    def expire(self) -> None:
        """Abort what is past its time. The backstop, for peers that went silent."""
        self.sender.expire(self._clock())
        self.receiver.expire(self._clock())
