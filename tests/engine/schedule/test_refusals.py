"""How long it is remembered that a request did not fit."""

from __future__ import annotations

import pytest
from tests.engine.schedule.schedules import make_request, make_scheduler

from baton.core.kv_pool import Holder, HolderKind
from baton.engine.blocks.block_pool import BlockPool
from baton.engine.schedule.refusals import Refusals

LEASE = Holder(HolderKind.LEASE, "one")


@pytest.fixture
def pool() -> BlockPool:
    """A's share is used up, the pool is not."""
    pool = make_scheduler(num_blocks=8, kv_shares={"a": 0.25}).pool
    pool.reserve(LEASE, range(8), b"", tenant="a")
    return pool


def test_a_refusal_stands_for_one_request_until_a_block_is_released(pool: BlockPool) -> None:
    refusals = Refusals(pool)
    first, second = make_request("first", prompt_len=3), make_request("second", prompt_len=3)

    refusals.refuse(first)

    assert refusals.stands(first) and not refusals.stands(second)
    pool.release(LEASE)
    assert not refusals.stands(first)


def test_all_are_refused_until_a_block_is_released_or_a_request_comes_or_goes(
    pool: BlockPool,
) -> None:
    refusals = Refusals(pool)
    assert not refusals.are_of_all

    for allow in (refusals.reconsider, lambda: refusals.forget("b"), lambda: pool.release(LEASE)):
        refusals.refuse_all()
        assert refusals.are_of_all
        allow()
        assert not refusals.are_of_all


def test_over_its_share_is_who_was_refused_by_it_until_another_of_its_tenant_leaves(
    pool: BlockPool,
) -> None:
    refusals = Refusals(pool)
    limited, other = (make_request(name, prompt_len=3, tenant=name) for name in ("a", "b"))

    for request in (limited, other):
        refusals.refuse(request)

    assert refusals.is_over_share(limited) and not refusals.is_over_share(other)
    refusals.forget("b")
    assert refusals.is_over_share(limited)
    refusals.forget("a")
    assert not refusals.is_over_share(limited) and not refusals.stands(limited)

    refusals.refuse(limited)
    pool.release(LEASE)
    pool.reserve(Holder(HolderKind.LEASE, "others"), range(24), b"", tenant="b")
    refusals.refuse(limited)  # now by the pool
    assert not refusals.is_over_share(limited)
