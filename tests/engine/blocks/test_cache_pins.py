"""Cache points on a replica: what stays, for how long, and what it gives way to."""

from __future__ import annotations

from collections.abc import Mapping
from zlib import crc32

from tests.engine.no_bytes import NoBytes

from baton.core.clock import ManualClock
from baton.core.kv_pool import Holder, HolderKind
from baton.engine.blocks.block_pool import BlockPool

BLOCK_SIZE = 4
TTL_S = 300.0


class World:
    def __init__(
        self,
        *,
        num_blocks: int = 10,
        pinned_fraction: float = 0.5,
        kv_shares: Mapping[str, float] | None = None,
    ) -> None:
        self.clock = ManualClock()
        self.pool = BlockPool(
            NoBytes(num_blocks, BLOCK_SIZE),
            pinned_fraction=pinned_fraction,
            kv_shares=kv_shares,
            clock=self.clock,
        )

    def hold(self, name: str, num_blocks: int, tenant: str = "") -> Holder:
        holder = Holder(HolderKind.REQUEST, f"{tenant} {name}")
        tokens = prompt_of(name, num_blocks)
        assert self.pool.reserve(holder, tokens, tenant.encode(), tenant=tenant) is not None
        self.pool.commit(holder, tokens, len(tokens), tenant.encode())
        return holder

    def pin(self, name: str, num_blocks: int, *, ttl_s: float = TTL_S, tenant: str = "") -> int:
        """Compute a prompt, pin it and let go of it; how many blocks of it are pinned."""
        holder = self.hold(name, num_blocks, tenant)
        pinned = self.pool.pin(holder, num_blocks * BLOCK_SIZE, ttl_s)
        self.pool.release(holder)
        return pinned.num_blocks

    def flood(self) -> None:
        """Run prompts until nothing that may be evicted is left."""
        for number in range(5):
            holder = Holder(HolderKind.REQUEST, f"flood {number}")
            num_free = self.pool.num_available - self.pool.prefixes.pins.num_names
            tokens = prompt_of(f"x{number}", num_free)
            assert self.pool.reserve(holder, tokens, b"flood") is not None
            self.pool.release(holder)

    def num_cached(self, name: str, num_blocks: int, tenant: str = "") -> int:
        tokens = prompt_of(name, num_blocks)
        return self.pool.num_cached(tokens, tenant.encode()) // BLOCK_SIZE


def prompt_of(name: str, num_blocks: int) -> list[int]:
    """Prompts of different names have nothing in common; one of a name begins like a longer one."""
    start = crc32(name.encode()) % 2**20 * 64
    return list(range(start, start + num_blocks * BLOCK_SIZE))


def test_a_pinned_prefix_outlives_others_used_later() -> None:
    world = World()
    world.pin("pinned", 3)
    world.pool.release(world.hold("later", 3))

    world.flood()

    assert world.num_cached("pinned", 3) == 3
    assert world.num_cached("later", 3) == 0


def test_a_pin_ends_when_its_time_passes_without_a_use() -> None:
    world = World()
    world.pin("pinned", 3)

    world.clock.advance(TTL_S)
    world.flood()

    assert world.num_cached("pinned", 3) == 0
    assert (world.pool.prefixes.pins.num_names, world.pool.supply.counters.num_expired) == (0, 1)


def test_every_use_gives_a_pin_all_of_its_time_again() -> None:
    world = World()
    world.pin("pinned", 3)

    for _ in range(3):
        world.clock.advance(TTL_S - 1)
        world.pool.release(world.hold("pinned", 4))
    world.flood()

    assert world.num_cached("pinned", 3) == 3


def test_a_prompt_that_stops_short_of_the_point_does_not_use_it() -> None:
    world = World()
    world.pin("pinned", 3)

    world.clock.advance(TTL_S - 1)
    world.pool.release(world.hold("pinned", 3))  # its last block is always computed
    world.clock.advance(1)
    world.flood()

    assert world.num_cached("pinned", 3) == 0


def test_a_longer_time_is_not_cut_short_by_a_shorter_one() -> None:
    world = World()
    world.pin("pinned", 3, ttl_s=3600)

    world.pin("pinned", 3, ttl_s=300)
    world.clock.advance(3599)
    world.flood()

    assert world.num_cached("pinned", 3) == 3


def test_an_expired_prefix_is_the_first_to_be_evicted_its_deepest_block_first() -> None:
    world = World()
    world.pin("pinned", 3)
    world.pool.release(world.hold("later", 3))
    world.clock.advance(TTL_S)

    world.pool.release(world.hold("new", 6))

    assert world.num_cached("pinned", 3) == 1
    assert world.num_cached("later", 3) == 3


def test_over_their_share_of_the_pool_the_oldest_pins_lose_their_pin() -> None:
    world = World(pinned_fraction=0.5)
    world.pin("old", 2)
    world.pin("used", 2)
    world.pin("old", 2)  # pinned again, and so the youngest

    holder = world.hold("new", 3)
    pinned = world.pool.pin(holder, 3 * BLOCK_SIZE, TTL_S)

    assert (pinned.num_blocks, pinned.num_displaced) == (3, 1)
    world.pool.release(holder)
    world.flood()
    assert world.num_cached("used", 2) == 0
    assert (world.num_cached("old", 2), world.num_cached("new", 3)) == (2, 3)


def test_of_a_prefix_larger_than_that_share_only_its_beginning_is_pinned() -> None:
    world = World(pinned_fraction=0.5)

    assert world.pin("large", 8) == 5

    world.flood()
    assert world.num_cached("large", 8) == 5


def test_points_of_one_conversation_share_their_blocks() -> None:
    world = World(pinned_fraction=0.5)
    world.pin("talk", 2)
    world.pin("talk", 4)

    assert world.pool.prefixes.pins.num_names == 4
    world.clock.advance(TTL_S - 1)
    world.pool.release(world.hold("talk", 3))  # uses the first point, not the second
    world.clock.advance(1)
    world.flood()

    assert world.num_cached("talk", 4) == 2


def test_a_running_request_takes_the_blocks_of_pins_rather_than_wait() -> None:
    world = World()
    world.pin("pinned", 4)
    running = world.hold("running", 6)

    assert not world.pool.grow(running, 7 * BLOCK_SIZE)
    assert world.pool.supply.evict_pin("")
    assert world.pool.grow(running, 7 * BLOCK_SIZE)
    assert world.pool.supply.counters.num_evicted == 1
    assert not world.pool.supply.evict_pin("")


def test_pins_of_referenced_blocks_stand_in_nobodys_way() -> None:
    world = World()
    holder = world.hold("pinned", 4)
    world.pool.pin(holder, 4 * BLOCK_SIZE, TTL_S)

    assert not world.pool.supply.evict_pin("")
    assert world.pool.prefixes.pins.num_names == 4


def test_pinned_blocks_are_cached_blocks_to_the_census() -> None:
    world = World()
    world.pin("pinned", 3)

    census = world.pool.census()

    assert len(census.cached) == 3
    assert len(census.free) == 7
    assert world.pool.num_available == 10


def test_what_was_not_computed_cannot_be_pinned() -> None:
    world = World()
    holder = Holder(HolderKind.REQUEST, "begun")
    tokens = prompt_of("begun", 4)
    world.pool.reserve(holder, tokens, b"")
    world.pool.commit(holder, tokens, 2 * BLOCK_SIZE + 1, b"")

    assert world.pool.pin(holder, 4 * BLOCK_SIZE, TTL_S).num_blocks == 2
    assert world.pool.pin(Holder(HolderKind.REQUEST, "unknown"), 4, TTL_S).num_blocks == 0


def test_wrong_contents_are_not_pinned_any_more() -> None:
    world = World()
    holder = world.hold("wrong", 4)
    world.pool.pin(holder, 4 * BLOCK_SIZE, TTL_S)

    world.pool.forget(holder)
    world.pool.release(holder)

    assert world.pool.prefixes.pins.num_names == 0
    assert len(world.pool.census().free) == 10


def test_a_reset_of_the_cache_ends_all_pins() -> None:
    world = World()
    world.pin("pinned", 3)

    world.pool.reset_cache()

    assert world.pool.prefixes.pins.num_names == 0
    assert len(world.pool.census().free) == 10


def test_a_tenant_pins_no_more_than_that_share_of_its_own() -> None:
    world = World(pinned_fraction=0.5, kv_shares={"a": 0.4})
    world.pin("other", 2, tenant="b")

    assert world.pin("large", 4, tenant="a") == 2
    assert world.pin("small", 1, tenant="a") == 1
    assert world.pool.supply.counters.num_displaced == 1
    assert world.pool.prefixes.pins.num_names == 3


def test_pins_of_a_tenant_at_its_limit_give_way_to_it_and_others_do_not() -> None:
    world = World(pinned_fraction=1.0, kv_shares={"a": 0.4})
    world.pin("other", 2, tenant="b")
    world.pin("own", 2, tenant="a")
    running = world.hold("running", 2, tenant="a")

    assert not world.pool.grow(running, 3 * BLOCK_SIZE)
    assert world.pool.supply.evict_pin("a")
    assert world.pool.grow(running, 4 * BLOCK_SIZE)
    assert not world.pool.supply.evict_pin("a")
    assert world.num_cached("other", 2, tenant="b") == 2


def test_a_pin_of_another_tenants_gives_way_to_whoever_has_its_blocks_on_its_account() -> None:
    """A block is on the account of whoever took it, which need not be who pins it."""
    world = World(kv_shares={"a": 0.5})
    tokens = prompt_of("lent", 4)
    lease = Holder(HolderKind.LEASE, "brought in")
    world.pool.reserve(lease, tokens, b"a")
    world.pool.commit(lease, tokens, len(tokens), b"a")
    world.pool.release(lease)
    holder = Holder(HolderKind.REQUEST, "finds it")
    world.pool.reserve(holder, [*tokens, 1], b"a", tenant="a")
    world.pool.pin(holder, len(tokens), TTL_S)
    world.pool.release(holder)

    def takes_all() -> bool:
        holder = Holder(HolderKind.REQUEST, "nobody's")
        return world.pool.reserve(holder, prompt_of("other", 5), b"") is not None

    assert not takes_all()
    assert world.pool.supply.evict_pin("")
    assert takes_all()
