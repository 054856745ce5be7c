"""The pool against a naive model, over random sequences of what engine and transfers do.

Every computed block is really written: its bytes are a digest of the tenant and of all tokens up to
its end. So bytes that are wrong anywhere mean a block written while shared, or matched wrongly.
An index follows the pool's events, now and then too late, and must know its names at every step.

Tenants come with and without a share of the pool. What is on whose account, and what each may take,
is counted from the census alone; pins are followed by a list of (names, time left).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from baton.core.block_hash import block_hashes, root_hash
from baton.core.clock import ManualClock
from baton.core.ids import Epoch
from baton.core.kv_events import KvChange, KvEvent, KvEvents
from baton.core.kv_layout import KvLayout
from baton.core.kv_pool import Census, Holder, HolderKind, Holdings
from baton.engine.blocks.block_pool import BlockPool
from baton.engine.blocks.kv_event_log import KvEventLog
from baton.router.cache.kv_index import KvIndex

BLOCK_SIZE = 2
LAYOUT = KvLayout(
    model_fingerprint=b"model",
    dtype="float32",
    num_layers=1,
    num_kv_heads=1,
    head_dim=2,
    block_size=BLOCK_SIZE,
)
TOKENS = st.lists(st.integers(0, 1), min_size=1, max_size=9)
REPLICA = Epoch("replica")
SALTS = st.sampled_from([b"", b"tenant"])
"""Each is a tenant's, of the same name."""
SHARES = st.sampled_from([{}, {"tenant": 0.5}, {"": 0.4, "tenant": 0.6}, {"": 0.3}])
PINNED_FRACTION = 0.5
TTL_S = 10.0


class FakeBytes:
    def __init__(self, num_blocks: int) -> None:
        self.layout = LAYOUT
        self.num_blocks = num_blocks
        self._blocks = [bytes(LAYOUT.layer_block_bytes)] * num_blocks

    def view(self, block: int, layer: int) -> memoryview:
        return memoryview(self._blocks[block])

    def views(self, blocks: Sequence[int], planes: range) -> tuple[memoryview, ...]:
        return tuple(self.view(block, plane) for plane in planes for block in blocks)

    def write(self, block: int, layer: int, data: memoryview) -> None:
        self._blocks[block] = bytes(data)

    def clear(self, blocks: Sequence[int], layer: int) -> None:
        raise AssertionError("whole blocks are written here")

    def clear_tail(self, block: int, layer: int, num_used: int) -> None:
        raise AssertionError("whole blocks are written here")

    is_in_memory = False
    head_runs = ()
    device_rows = None

    def writable(self, block: int, layer: int) -> memoryview:
        raise AssertionError("whole blocks are written here")

    def writables(self, blocks: Sequence[int], planes: range) -> list[memoryview]:
        return [self.writable(block, plane) for plane in planes for block in blocks]

    def write_part(self, block: int, layer: int, offset: int, data: memoryview) -> None:
        raise AssertionError("whole blocks are written here")

    def scratch(self, num_bytes: int) -> memoryview:
        raise AssertionError("whole blocks are written here")

    def write_blocks(self, blocks: Sequence[int], planes: range, data: memoryview) -> None:
        raise AssertionError("whole blocks are written here")


@dataclass
class Held:
    """What the model knows of one holder."""

    tokens: list[int]
    salt: bytes
    num_computed: int
    num_blocks: int
    is_sealed: bool = False
    """Nothing is computed any more: its last block may be shared though it is not full."""


def contents(held: Held, index: int) -> bytes:
    known = bytes(held.tokens[: (index + 1) * BLOCK_SIZE])
    return blake2b(known, digest_size=LAYOUT.layer_block_bytes, key=held.salt).digest()


class PoolMachine(RuleBasedStateMachine):
    @initialize(
        num_blocks=st.integers(3, 10), max_names=st.sampled_from([0, 3, 1000]), shares=SHARES
    )
    def start(self, num_blocks: int, max_names: int, shares: Mapping[str, float]) -> None:
        self.clock = ManualClock()
        self.shares = shares
        self.pool = BlockPool(
            FakeBytes(num_blocks),
            pinned_fraction=PINNED_FRACTION,
            kv_shares=shares,
            clock=self.clock,
        )
        self.owner: dict[int, str] = {}
        """By block that is not free: whose account it is on."""
        self.certain_until: dict[tuple[bytes, ...], float] = {}
        """By names: when a pin that nothing has ended yet may end at the earliest."""
        self.log = KvEventLog(max_names)
        self.pool.record_in(self.log)
        self.index = KvIndex(stretch=2)
        self.index.apply(REPLICA, KvEvents(first_sequence=1, is_snapshot=True))
        self.sequence = 1
        self.held: dict[Holder, Held] = {}
        self.num_names = 0

    def new_holder(self, kind: HolderKind) -> Holder:
        self.num_names += 1
        return Holder(kind, str(self.num_names))

    def pick(self, data: st.DataObject) -> Holder:
        return data.draw(st.sampled_from(list(self.held)))

    @rule(kind=st.sampled_from([HolderKind.REQUEST, HolderKind.LEASE]), tokens=TOKENS, salt=SALTS)
    def reserve(self, kind: HolderKind, tokens: list[int], salt: bytes) -> None:
        self.admit(kind, tokens, salt)

    @rule(tokens=TOKENS, salt=SALTS, ttl_s=st.sampled_from([0.0, TTL_S]))
    def run(self, tokens: list[int], salt: bytes, ttl_s: float) -> None:
        """From its arrival to its end: what is left of it is cached, and perhaps pinned."""
        holder = self.admit(HolderKind.REQUEST, tokens, salt)
        if holder is None:
            return
        self.compute_up_to(holder, len(tokens))
        if ttl_s:
            self.pin_first(holder, len(tokens), ttl_s)
        del self.held[holder]
        self.pool.release(holder)

    def admit(self, kind: HolderKind, tokens: list[int], salt: bytes) -> Holder | None:
        holder, before = self.new_holder(kind), self.pool.census()
        tenant, num_pinned = salt.decode(), self.pool.prefixes.pins.num_names
        num_cached = self.pool.reserve(holder, tokens, salt, tenant=tenant)
        num_blocks = -(-len(tokens) // BLOCK_SIZE)
        if num_cached is None:
            assert num_blocks > self.room(tenant, before) - num_pinned
            assert self.pool.census() == before
            return None
        assert num_cached < len(tokens) and num_cached % BLOCK_SIZE == 0
        assert num_blocks - num_cached // BLOCK_SIZE <= self.room(tenant, before)
        self.held[holder] = Held(tokens, salt, num_cached, num_blocks)
        self.book(tenant, self.pool.table(holder)[num_cached // BLOCK_SIZE :])
        return holder

    @precondition(lambda self: self.held)
    @rule(data=st.data(), more=TOKENS)
    def grow(self, data: st.DataObject, more: list[int]) -> None:
        holder = self.pick(data)
        held, before = self.held[holder], self.pool.census()
        if held.is_sealed:
            return
        num_tokens = len(held.tokens) + len(more)
        num_fresh = -(-num_tokens // BLOCK_SIZE) - held.num_blocks
        tenant, num_pinned = held.salt.decode(), self.pool.prefixes.pins.num_names
        room = self.room(tenant, before)
        if self.pool.grow(holder, num_tokens):
            assert num_fresh <= max(0, room)
            self.book(tenant, self.pool.table(holder)[held.num_blocks :])
            held.tokens = held.tokens + more
            held.num_blocks += num_fresh
        else:
            assert num_fresh > room - num_pinned
            assert self.pool.census() == before

    def kept(self, tenant: str) -> int:
        share = self.shares.get(tenant)
        return 0 if share is None else max(1, int(share * self.pool.num_blocks))

    def limit(self, tenant: str) -> int:
        num_left = self.pool.num_blocks - sum(map(self.kept, self.shares))
        return self.kept(tenant) or num_left

    def room(self, tenant: str, census: Census) -> int:
        """Blocks that the tenant could have if nothing were pinned."""
        idle = Counter(self.owner[block] for block in census.cached)
        held = Counter(
            self.owner[block] for block in range(census.num_blocks) if block not in census.free
        )
        others = sum(
            min(idle[other], max(0, held[other] - self.kept(other)))
            for other in idle
            if other != tenant
        )
        within_limit = self.limit(tenant) - held[tenant] + idle[tenant]
        return min(within_limit, len(census.free) + idle[tenant] + others)

    def book(self, tenant: str, fresh: Sequence[int]) -> None:
        """`fresh` blocks are the tenant's now; nobody else lost what is kept for them."""
        num_before = Counter(self.owner.values())
        self.owner.update(dict.fromkeys(fresh, tenant))
        num_after = Counter(self.owner.values())
        for other in num_before.keys() - {tenant}:
            assert num_after[other] >= min(num_before[other], self.kept(other))

    @precondition(lambda self: self.held)
    @rule(data=st.data(), num_tokens=st.integers(0, 12), ttl_s=st.sampled_from([TTL_S, 4 * TTL_S]))
    def pin(self, data: st.DataObject, num_tokens: int, ttl_s: float) -> None:
        self.pin_first(self.pick(data), num_tokens, ttl_s)

    def pin_first(self, holder: Holder, num_tokens: int, ttl_s: float) -> None:
        held, before = self.held[holder], self.pool.census()
        pinned = self.pool.pin(holder, num_tokens, ttl_s)
        assert self.pool.census() == before
        assert pinned.num_blocks * BLOCK_SIZE <= min(num_tokens, held.num_computed)
        assert pinned.num_blocks <= PINNED_FRACTION * self.limit(held.salt.decode())
        if pinned.num_displaced:
            self.certain_until.clear()
        root = root_hash(LAYOUT.model_fingerprint, held.salt)
        names = tuple(block_hashes(root, held.tokens, BLOCK_SIZE))[: pinned.num_blocks]
        if names:
            self.certain_until[names] = max(
                self.certain_until.get(names, 0.0), self.clock() + ttl_s
            )

    @rule(seconds=st.sampled_from([1.0, TTL_S / 2, TTL_S]))
    def wait(self, seconds: float) -> None:
        self.clock.advance(seconds)

    @rule(salt=SALTS)
    def evict_pin(self, salt: bytes) -> None:
        before, num_pins = self.pool.census(), len(self.pool.prefixes.pins)
        if self.pool.supply.evict_pin(salt.decode()):
            assert len(self.pool.prefixes.pins) == num_pins - 1
            self.certain_until.clear()
        assert self.pool.census() == before

    @precondition(lambda self: self.held)
    @rule(data=st.data())
    def compute(self, data: st.DataObject) -> None:
        holder = self.pick(data)
        held = self.held[holder]
        if held.is_sealed or held.num_computed == len(held.tokens):
            return
        self.compute_up_to(holder, data.draw(st.integers(held.num_computed + 1, len(held.tokens))))

    def compute_up_to(self, holder: Holder, end: int) -> None:
        held = self.held[holder]
        for index in range(held.num_computed // BLOCK_SIZE, -(-end // BLOCK_SIZE)):
            self.pool.write(holder, index, 0, memoryview(contents(held, index)))
        held.num_computed = end
        self.pool.commit(holder, held.tokens, end, held.salt)

    @precondition(lambda self: self.held)
    @rule(data=st.data(), is_whole=st.booleans())
    def share(self, data: st.DataObject, is_whole: bool) -> None:
        source = self.pick(data)
        held = self.held[source]
        num_blocks = held.num_computed // BLOCK_SIZE
        if is_whole and held.num_computed == len(held.tokens):
            held.is_sealed = True
            num_blocks = held.num_blocks
        target = self.new_holder(HolderKind.LEASE)
        for count in sorted({num_blocks // 2, num_blocks}):
            self.pool.share(source, target, count)
        if num_blocks:
            tokens = held.tokens[: num_blocks * BLOCK_SIZE]
            self.held[target] = Held(tokens, held.salt, len(tokens), num_blocks, is_sealed=True)

    @precondition(lambda self: self.held)
    @rule(data=st.data(), kind=st.sampled_from(list(HolderKind)))
    def hand_over(self, data: st.DataObject, kind: HolderKind) -> None:
        source, target = self.pick(data), self.new_holder(kind)
        self.pool.hand_over(source, target)
        self.held[target] = self.held.pop(source)

    @precondition(lambda self: self.held)
    @rule(data=st.data(), times=st.integers(1, 2))
    def release(self, data: st.DataObject, times: int) -> None:
        holder = self.pick(data)
        del self.held[holder]
        for _ in range(times):
            self.pool.release(holder)

    @precondition(lambda self: self.held)
    @rule(data=st.data())
    def write_where_it_is_forbidden(self, data: st.DataObject) -> None:
        """A shared block refuses to be written, so the bytes checked below stay right."""
        holder = self.pick(data)
        for index, block in enumerate(self.pool.table(holder)):
            if self.pool.census().ref_counts[block] > 1:
                try:
                    self.pool.write(holder, index, 0, memoryview(bytes(LAYOUT.layer_block_bytes)))
                except ValueError:
                    continue
                raise AssertionError(f"block {block} is shared and was written")

    @precondition(lambda self: self.held and self.num_names % 8 == 7)
    @rule(data=st.data())
    def forget(self, data: st.DataObject) -> None:
        """The model was wrong: what this holder computed is not found any more."""
        self.certain_until.clear()
        self.pool.forget(self.pick(data))

    @precondition(lambda self: self.num_names % 8 == 7)  # seldom: it undoes what others need
    @rule()
    def reset_cache(self) -> None:
        self.certain_until.clear()
        self.pool.reset_cache()
        assert not self.pool.census().cached

    @rule()
    def follow(self) -> None:
        """Not after every change, so that events of many arrive together."""
        self.log.flush()
        events = self.log.read(self.sequence) or KvEvents(
            first_sequence=self.log.next_sequence,
            events=(KvEvent(KvChange.STORED, b"".join(self.pool.prefixes.names())),),
            is_snapshot=True,
        )
        self.index.apply(REPLICA, events)
        self.sequence = events.next_sequence
        names = list(self.pool.prefixes.names())
        assert self.index.num_blocks(REPLICA) == len(names)
        assert all(self.index.num_cached_blocks([name]) for name in names)

    @invariant()
    def every_block_is_counted_once(self) -> None:
        census = self.pool.census()
        listed = Counter(block for table in census.tables.values() for block in table)
        assert list(census.ref_counts) == [listed[block] for block in range(census.num_blocks)]
        idle = [*census.cached, *census.free]
        assert len({*idle, *listed}) == len(idle) + len(listed)
        assert census.num_blocks == len(listed) + len(census.cached) + len(census.free)
        assert self.pool.num_available == len(census.cached) + len(census.free)
        assert self.pool.holdings() == Holdings(
            num_blocks=census.num_blocks,
            tables=census.tables,
            num_cached=len(census.cached),
            num_free=len(census.free),
        )

    @invariant()
    def every_block_is_on_the_account_of_who_took_it(self) -> None:
        for block in self.pool.census().free:
            self.owner.pop(block, None)
        num_held = Counter(self.owner.values())
        assert self.pool.accounts.num_held_by_tenant == num_held
        assert all(num <= self.limit(tenant) for tenant, num in num_held.items())

    @invariant()
    def what_is_pinned_is_found_and_within_bounds(self) -> None:
        found = set(self.pool.prefixes.names())
        for names, until in self.certain_until.items():
            assert until <= self.clock() or found.issuperset(names)
        pinned = {name for pin in self.pool.prefixes.pins for name in pin.names}
        assert found.issuperset(pinned)
        assert (
            len(pinned)
            == self.pool.prefixes.pins.num_names
            <= PINNED_FRACTION * self.pool.num_blocks
        )

    @invariant()
    def every_holder_has_its_blocks_and_no_other_has_any(self) -> None:
        sizes = {holder: len(table) for holder, table in self.pool.census().tables.items()}
        assert sizes == {holder: held.num_blocks for holder, held in self.held.items()}

    @invariant()
    def computed_blocks_hold_what_their_tokens_say(self) -> None:
        for holder, held in self.held.items():
            for index in range(held.num_computed // BLOCK_SIZE):
                assert bytes(self.pool.view(holder, index, 0)) == contents(held, index)

    def teardown(self) -> None:
        for holder in list(getattr(self, "held", ())):
            self.pool.release(holder)
            assert holder not in self.pool.census().tables


TestPool = PoolMachine.TestCase
TestPool.settings = settings(max_examples=60, stateful_step_count=50, deadline=None)
