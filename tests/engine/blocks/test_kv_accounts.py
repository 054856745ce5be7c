"""Whose blocks are whose, and who may take whose: shares of the pool, one rule at a time."""

from __future__ import annotations

from collections.abc import Mapping
from zlib import crc32

from tests.engine.no_bytes import NoBytes

from baton.core.kv_pool import Holder, HolderKind
from baton.engine.blocks.block_pool import BlockPool
from baton.engine.blocks.kv_accounts import KvAccounts

BLOCK_SIZE = 4


def make_pool(shares: Mapping[str, float], *, num_blocks: int = 10) -> BlockPool:
    return BlockPool(NoBytes(num_blocks, BLOCK_SIZE), kv_shares=shares)


def prompt_of(name: str, num_blocks: int) -> list[int]:
    """Prompts of different names have nothing in common."""
    start = crc32(name.encode()) % 2**20 * 64
    return list(range(start, start + num_blocks * BLOCK_SIZE))


def hold(pool: BlockPool, tenant: str, name: str, num_blocks: int) -> Holder | None:
    """A computed prompt of the tenant's; None if the pool refuses it."""
    holder, tokens = Holder(HolderKind.REQUEST, f"{tenant} {name}"), prompt_of(name, num_blocks)
    if pool.reserve(holder, tokens, tenant.encode(), tenant=tenant) is None:
        return None
    pool.commit(holder, tokens, len(tokens), tenant.encode())
    return holder


def cache(pool: BlockPool, tenant: str, name: str, num_blocks: int) -> None:
    holder = hold(pool, tenant, name, num_blocks)
    assert holder is not None
    pool.release(holder)


def num_cached(pool: BlockPool, tenant: str, name: str, num_blocks: int) -> int:
    tokens = prompt_of(name, num_blocks)
    return pool.num_cached(tokens, tenant.encode()) // BLOCK_SIZE


def test_a_tenant_holds_no_more_than_its_share() -> None:
    pool = make_pool({"a": 0.5})
    hold(pool, "a", "one", 3)

    assert hold(pool, "a", "two", 3) is None
    assert hold(pool, "a", "three", 2) is not None
    assert hold(pool, "b", "one", 5) is not None
    assert pool.accounts.num_held_by_tenant == {"a": 5, "b": 5}


def test_at_its_limit_a_tenant_evicts_what_it_cached_itself() -> None:
    pool = make_pool({"a": 0.5})
    cache(pool, "b", "other", 2)
    cache(pool, "a", "old", 3)
    cache(pool, "a", "new", 2)

    cache(pool, "a", "newest", 3)

    assert num_cached(pool, "a", "old", 3) == 0
    assert num_cached(pool, "a", "new", 2) == 2
    assert num_cached(pool, "b", "other", 2) == 2


def test_what_a_tenant_caches_within_its_share_no_other_evicts() -> None:
    pool = make_pool({"a": 0.3})
    cache(pool, "a", "kept", 3)

    for number in range(8):
        cache(pool, "flood", str(number), 5)

    assert num_cached(pool, "a", "kept", 3) == 3
    assert hold(pool, "flood", "too large", 8) is None
    assert hold(pool, "flood", "just right", 7) is not None
    assert num_cached(pool, "a", "kept", 3) == 3


def test_tenants_without_a_share_compete_for_all_that_is_not_kept() -> None:
    pool = make_pool({"a": 0.3})
    cache(pool, "b", "old", 4)
    cache(pool, "c", "new", 4)

    cache(pool, "d", "newest", 5)

    assert num_cached(pool, "b", "old", 4) == 1
    assert num_cached(pool, "c", "new", 4) == 4


def test_whoever_has_no_share_may_have_what_the_shares_leave() -> None:
    accounts = KvAccounts(100, {"a": 0.5, "b": 0.3})

    assert (accounts.max_held("a"), accounts.num_kept("a")) == (50, 50)
    assert (accounts.max_held("c"), accounts.num_kept("c")) == (20, 0)


def test_a_share_that_is_not_used_is_lent_but_not_to_one_tenant_alone() -> None:
    pool = make_pool({"a": 0.5})
    cache(pool, "b", "one", 5)
    cache(pool, "c", "two", 5)
    assert pool.supply.num_available == len(pool.census().cached) == 10

    assert hold(pool, "a", "mine", 5) is not None
    assert hold(pool, "b", "too large", 6) is None


def test_growth_is_on_the_account_of_the_holder() -> None:
    pool = make_pool({"a": 0.5})
    holder = hold(pool, "a", "one", 4)
    assert holder is not None

    assert pool.grow(holder, 5 * BLOCK_SIZE)
    assert not pool.grow(holder, 6 * BLOCK_SIZE)
    assert pool.supply.is_at_limit("a")
    assert not pool.supply.is_at_limit("b")


def test_leases_count_for_their_tenant_and_go_with_the_blocks() -> None:
    pool = make_pool({"a": 0.5})
    lease, adopted = Holder(HolderKind.LEASE, "in"), Holder(HolderKind.REQUEST, "adopted")
    pool.reserve(lease, prompt_of("one", 4), b"a", tenant="a")
    pool.hand_over(lease, adopted)

    assert hold(pool, "a", "two", 2) is None
    assert pool.grow(adopted, 5 * BLOCK_SIZE)
    pool.release(adopted)
    assert pool.accounts.num_held_by_tenant == {}
    assert hold(pool, "a", "two", 5) is not None


def test_the_smallest_share_is_one_block() -> None:
    assert KvAccounts(10, {"a": 0.01}).max_held("a") == 1
