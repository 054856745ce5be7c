"""What a replica's limits become, once its ways for KV to come and go are wired."""

from __future__ import annotations

from typing import Any

from tests.kv_transfer.replicas import LAYOUT, DecodeReplica

from baton.core.clock import ManualClock
from baton.core.ids import TransferId, new_epoch
from baton.core.kv_pool import Holder, HolderKind
from baton.core.owner_thread import Inline
from baton.engine.blocks.block_pool import BlockPool
from baton.engine.memory.kv_cache import KvCache
from baton.kv_transfer.config import ExchangeConfig
from baton.kv_transfer.exchange import ExchangeParts, KvExchange
from baton.kv_transfer.transport.memory import MemoryTransport, Switchboard
from baton.proto.channels import Channels


def make_parts(**changes: Any) -> ExchangeParts:
    transport = MemoryTransport(Switchboard())
    return ExchangeParts(epoch=new_epoch(), transport=transport, channels=Channels(), **changes)


async def test_a_loan_expires_when_the_replica_says_whatever_its_peer_asks_for() -> None:
    clock = ManualClock()
    config = ExchangeConfig(prefill_timeout_s=5.0, max_held_fraction=0.25)
    parts = make_parts(config=config)
    pool = BlockPool(KvCache(LAYOUT, 32))
    exchange = KvExchange(parts, pool=pool, owner=Inline(), clock=clock)
    loan = TransferId("kv-1")
    source = Holder(HolderKind.REQUEST, loan)
    exchange.sender.offer(
        loan, new_epoch(), source=source, num_tokens=8, time_left_s=1e9, now=clock()
    )
    assert exchange.sender.held.max_blocks == 8

    clock.advance(4.9)
    exchange.expire()
    assert exchange.lease_ids == {loan}

    clock.advance(0.1)
    exchange.expire()
    assert exchange.lease_ids == frozenset()
    assert exchange.metrics()["transfers_expired_total"] == 1
    await exchange.close()


async def test_chaos_may_keep_a_replica_from_reserving() -> None:
    may_reserve = [False, True]
    decode = DecodeReplica()
    parts = make_parts(may_reserve=may_reserve.pop)
    exchange = KvExchange(parts, pool=decode.pool, owner=Inline(), clock=decode.clock)
    decode.receiver = exchange.receiver

    assert decode.reserve(new_epoch(), TransferId("kv-1")) is not None
    assert decode.reserve(new_epoch(), TransferId("kv-2")) is None
    assert exchange.lease_ids == {TransferId("kv-1")}
    await exchange.close()
