"""The pool against a naive model, over random sequences of what engine and transfers do.

Every computed block is really written: its bytes are a digest of the tenant and of all tokens up to
its end. So bytes that are wrong anywhere mean a block written while shared, or matched wrongly.
An index follows the pool's events, now and then too late, and must know its names at every step.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from hashlib import blake2b

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from baton.core.ids import Epoch
from baton.core.kv_events import KvChange, KvEvent, KvEvents
from baton.core.kv_layout import KvLayout
from baton.core.kv_pool import Holder, HolderKind
from baton.engine.block_pool import BlockPool
from baton.engine.kv_event_log import KvEventLog
from baton.platform.router.kv_index import KvIndex

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


class FakeBytes:
    def __init__(self, num_blocks: int) -> None:
        self.layout = LAYOUT
        self.num_blocks = num_blocks
        self._blocks = [bytes(LAYOUT.layer_block_bytes)] * num_blocks

    def view(self, block: int, layer: int) -> memoryview:
        return memoryview(self._blocks[block])

    def write(self, block: int, layer: int, data: memoryview) -> None:
        self._blocks[block] = bytes(data)


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
    @initialize(num_blocks=st.integers(3, 10), max_names=st.sampled_from([0, 3, 1000]))
    def start(self, num_blocks: int, max_names: int) -> None:
        self.pool = BlockPool(FakeBytes(num_blocks))
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
        holder, before = self.new_holder(kind), self.pool.census()
        num_cached = self.pool.reserve(holder, tokens, salt)
        num_blocks = -(-len(tokens) // BLOCK_SIZE)
        if num_cached is None:
            assert num_blocks > len(before.free)
            assert self.pool.census() == before
            return
        assert num_cached < len(tokens) and num_cached % BLOCK_SIZE == 0
        self.held[holder] = Held(tokens, salt, num_cached, num_blocks)

    @precondition(lambda self: self.held)
    @rule(data=st.data(), more=TOKENS)
    def grow(self, data: st.DataObject, more: list[int]) -> None:
        holder = self.pick(data)
        held, before = self.held[holder], self.pool.census()
        if held.is_sealed:
            return
        num_tokens = len(held.tokens) + len(more)
        num_fresh = -(-num_tokens // BLOCK_SIZE) - held.num_blocks
        fits = num_fresh <= len(before.free) + len(before.cached)
        assert self.pool.grow(holder, num_tokens) == fits
        if fits:
            held.tokens = held.tokens + more
            held.num_blocks += num_fresh
        else:
            assert self.pool.census() == before

    @precondition(lambda self: self.held)
    @rule(data=st.data())
    def compute(self, data: st.DataObject) -> None:
        holder = self.pick(data)
        held = self.held[holder]
        if held.is_sealed or held.num_computed == len(held.tokens):
            return
        end = data.draw(st.integers(held.num_computed + 1, len(held.tokens)))
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

    @precondition(lambda self: self.held)
    @rule(data=st.data())
    def forget(self, data: st.DataObject) -> None:
        """The model was wrong: what this holder computed is not found any more."""
        self.pool.forget(self.pick(data))

    @rule()
    def reset_cache(self) -> None:
        self.pool.reset_cache()
        assert not self.pool.census().cached

    @rule()
    def follow(self) -> None:
        """Not after every change, so that events of many arrive together."""
        self.log.flush()
        events = self.log.read(self.sequence) or KvEvents(
            first_sequence=self.log.next_sequence,
            events=(KvEvent(KvChange.STORED, b"".join(self.pool.names())),),
            is_snapshot=True,
        )
        self.index.apply(REPLICA, events)
        self.sequence = events.next_sequence
        names = list(self.pool.names())
        assert self.index.num_blocks(REPLICA) == len(names)
        assert all(self.index.num_cached_blocks([name]) for name in names)

    @invariant()
    def every_block_is_counted_once(self) -> None:
        census = self.pool.census()
        listed = Counter(block for table in census.tables.values() for block in table)
        assert list(census.ref_counts) == [listed[block] for block in range(census.num_blocks)]
        assert not (census.cached & census.free or listed.keys() & (census.cached | census.free))
        assert census.num_blocks == len(listed) + len(census.cached) + len(census.free)
        assert self.pool.num_available == len(census.cached) + len(census.free)

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
TestPool.settings = settings(max_examples=150, stateful_step_count=40, deadline=None)
