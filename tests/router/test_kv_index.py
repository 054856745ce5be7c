"""The index of who has which blocks, held to a model that keeps one set of names a replica."""

from __future__ import annotations

from contextlib import closing

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from baton.core.block_hash import block_hashes
from baton.core.ids import Epoch
from baton.core.kv_events import KvChange, KvEvent, KvEvents
from baton.router.kv_index import STRETCH, Expected, KvGap, KvIndex

A, B, C = Epoch("a"), Epoch("b"), Epoch("c")
EPOCHS = (A, B)


def chain(text: str) -> tuple[bytes, ...]:
    """Names of blocks of one letter each."""
    return tuple(block_hashes(b"root", [ord(letter) for letter in text], 1))


def stored(*names: bytes) -> KvEvent:
    return KvEvent(KvChange.STORED, b"".join(names))


def evicted(*names: bytes) -> KvEvent:
    return KvEvent(KvChange.EVICTED, b"".join(names))


CLEARED = KvEvent(KvChange.CLEARED)


def snapshot(*names: bytes, first_sequence: int = 1) -> KvEvents:
    return KvEvents(first_sequence=first_sequence, events=(stored(*names),), is_snapshot=True)


def events(first_sequence: int, *changes: KvEvent) -> KvEvents:
    return KvEvents(first_sequence=first_sequence, events=changes)


def index_of(*, stretch: int = STRETCH, **text_by_epoch: str) -> KvIndex:
    index = KvIndex(stretch=stretch)
    for name, text in text_by_epoch.items():
        index.apply(Epoch(name), snapshot(*chain(text)))
    return index


def test_a_prompt_is_cached_as_far_as_a_replica_has_its_blocks_without_a_hole() -> None:
    index = index_of(a="the king", b="the queen")
    index.apply(B, events(1, evicted(chain("the queen")[1])))

    assert index.num_cached_blocks(chain("the kind")) == {A: 7, B: 1}
    assert index.num_cached_blocks(chain("a king")) == {}
    assert index.num_cached_blocks(()) == {}


def test_what_is_stored_and_evicted_is_found_and_no_longer_found() -> None:
    index = index_of(a="")

    index.apply(A, events(1, stored(*chain("abc"))))
    assert index.num_cached_blocks(chain("abcd")) == {A: 3}

    index.apply(A, events(2, evicted(chain("abc")[-1]), stored(chain("abx")[-1])))
    assert index.num_cached_blocks(chain("abc")) == {A: 2}
    assert index.num_cached_blocks(chain("abx")) == {A: 3}
    assert index.num_blocks(A) == 3


def test_a_cleared_cache_holds_nothing_but_what_comes_after() -> None:
    index = index_of(a="abc", b="abc")

    index.apply(A, events(1, stored(*chain("xyz")), CLEARED, stored(*chain("a"))))

    assert index.num_cached_blocks(chain("abc")) == {A: 1, B: 3}
    assert index.num_cached_blocks(chain("xyz")) == {}
    assert index.num_blocks(A) == 1


def test_a_gap_changes_nothing_and_a_snapshot_mends_it() -> None:
    index = index_of(a="abc")

    with pytest.raises(KvGap, match="event 3 came instead of 1"):
        index.apply(A, events(3, evicted(*chain("abc"))))
    assert index.num_cached_blocks(chain("abc")) == {A: 3}

    index.apply(A, snapshot(*chain("xy"), first_sequence=4))
    index.apply(A, events(4, stored(*chain("xyz")[2:])))
    assert index.num_cached_blocks(chain("abc")) == {}
    assert index.num_cached_blocks(chain("xyz")) == {A: 3}


def test_events_of_a_replica_without_a_snapshot_are_a_gap() -> None:
    with pytest.raises(KvGap, match="instead of a snapshot"):
        KvIndex().apply(A, events(1, stored(*chain("a"))))


def test_events_that_come_twice_count_once() -> None:
    index = index_of(a="")
    first, second = stored(*chain("ab")), evicted(chain("ab")[-1])
    index.apply(A, events(1, first, second))

    index.apply(A, events(1, first))
    assert index.num_cached_blocks(chain("ab")) == {A: 1}
    index.apply(A, events(1, first, second, stored(*chain("x"))))
    with pytest.raises(KvGap, match="event 5 came instead of 4"):
        index.apply(A, events(5))

    assert index.num_cached_blocks(chain("ab")) == {A: 1}
    assert index.num_cached_blocks(chain("x")) == {A: 1}
    assert index.num_blocks(A) == 2


def test_a_replica_that_left_has_nothing_and_one_that_comes_gets_nothing_of_it() -> None:
    index = index_of(a="abc", b="ab")

    index.forget(A)
    index.apply(C, snapshot())

    assert index.num_cached_blocks(chain("abc")) == {B: 2}
    assert index.num_blocks(A) == 0


def test_a_snapshot_takes_effect_at_once_when_it_is_complete() -> None:
    index = index_of(a="old prompt", stretch=2)

    loading = index.load(A, snapshot(*chain("new prompt"), first_sequence=7))
    for _ in loading:
        assert index.num_cached_blocks(chain("old prompt")) == {A: 10}
        assert index.num_cached_blocks(chain("new prompt")) == {}

    assert index.num_cached_blocks(chain("old prompt")) == {}
    assert index.num_cached_blocks(chain("new prompt")) == {A: 10}
    assert index.num_blocks(A) == 10


def test_a_snapshot_given_up_half_way_leaves_everything_as_it_was() -> None:
    index = index_of(a="old", stretch=2)

    with closing(index.load(A, snapshot(*chain("new prompt")))) as loading:
        next(loading)
    index.apply(A, events(1, stored(*chain("olds")[3:])))

    assert index.num_cached_blocks(chain("olds")) == {A: 4}
    assert index.num_cached_blocks(chain("new prompt")) == {}
    sweep(index, A, 2)
    assert len(index) == 4


def sweep(index: KvIndex, epoch: Epoch, first_sequence: int) -> None:
    """Let so many events pass that all memory is taken back."""
    for sequence in range(first_sequence, first_sequence + 200):
        index.apply(epoch, events(sequence, stored()))


def test_memory_of_those_who_left_is_taken_back_bit_by_bit() -> None:
    index = index_of(a="x" * 100, b="y" * 10, stretch=8)
    index.forget(A)
    assert len(index) > 10

    sweep(index, B, 1)

    assert len(index) == 10


def test_who_leaves_while_memory_is_taken_back_has_its_own_taken_back_later() -> None:
    index = index_of(a="x" * 10, b="y" * 10, c="z", stretch=1)
    index.forget(A)
    index.forget(B)

    sweep(index, C, 1)

    assert len(index) == 1


def test_replicas_that_come_and_go_for_ever_use_the_same_few_bits() -> None:
    index = KvIndex()
    for number in range(1000):
        index.apply(Epoch(str(number)), snapshot(*chain("prompt")))
        index.forget(Epoch(str(number)))

    assert len(index) == 0
    index.apply(A, snapshot(*chain("prompt")))
    assert max(index._slots_by_name.values()) <= 0b1000


def test_a_prompt_on_its_way_is_expected_until_it_is_released() -> None:
    index = index_of(a="")
    first, second = index.expect(chain("abcd"), A), index.expect(chain("abx"), A)
    third = index.expect(chain("a"), B)

    assert index.num_expected_blocks(chain("abcz")) == {A: 3, B: 1}
    assert index.num_cached_blocks(chain("abcz")) == {}

    index.release(first)
    index.release(first)
    assert index.num_expected_blocks(chain("abcz")) == {A: 2, B: 1}
    index.release(second)
    index.release(third)
    assert index.num_expected_blocks(chain("abcz")) == {}


def test_nothing_is_expected_of_a_replica_that_left() -> None:
    index = KvIndex()
    index.expect(chain("ab"), A)
    index.expect(chain("a"), B)

    index.forget(A)

    assert index.num_expected_blocks(chain("ab")) == {B: 1}


PROMPTS = st.sampled_from(["", "a", "ab", "abc", "abd", "b", "bc"])
CHANGES = st.one_of(
    st.builds(lambda text: stored(*chain(text)), PROMPTS),
    st.builds(lambda text: evicted(*chain(text)[-1:]), PROMPTS),
    st.builds(lambda text, start: evicted(*chain(text)[start:]), PROMPTS, st.integers(0, 6)),
    st.just(CLEARED),
)


class Replica:
    """The truth: what it has, and all it ever said."""

    def __init__(self) -> None:
        self.names: set[bytes] = set()
        self.said: list[KvEvent] = []

    def change(self, event: KvEvent) -> None:
        names = {event.names[i : i + 16] for i in range(0, len(event.names), 16)}
        match event.change:
            case KvChange.STORED:
                self.names |= names
            case KvChange.EVICTED:
                self.names -= names
            case KvChange.CLEARED:
                self.names.clear()
        self.said.append(event)


class Believed:
    """What the index must believe of a replica."""

    def __init__(self, names: set[bytes], num_heard: int) -> None:
        self.names = names
        self.num_heard = num_heard


class IndexMachine(RuleBasedStateMachine):
    """Replicas change; some of what they say arrives, late, twice, or never."""

    @initialize(stretch=st.sampled_from([1, 3, STRETCH]))
    def start(self, stretch: int) -> None:
        self.index = KvIndex(stretch=stretch)
        self.replica_by_epoch = {epoch: Replica() for epoch in EPOCHS}
        self.believed_by_epoch: dict[Epoch, Believed] = {}
        self.expected: list[tuple[Expected, str]] = []
        for epoch in EPOCHS:
            self.take_snapshot(epoch)

    @rule(epoch=st.sampled_from(EPOCHS), changes=st.lists(CHANGES, min_size=1, max_size=4))
    def change(self, epoch: Epoch, changes: list[KvEvent]) -> None:
        for change in changes:
            self.replica_by_epoch[epoch].change(change)

    @rule(epoch=st.sampled_from(EPOCHS))
    def take_snapshot(self, epoch: Epoch) -> None:
        replica = self.replica_by_epoch[epoch]
        first_sequence = len(replica.said) + 1
        self.index.apply(epoch, snapshot(*replica.names, first_sequence=first_sequence))
        self.believed_by_epoch[epoch] = Believed(set(replica.names), len(replica.said))

    @rule(epoch=st.sampled_from(EPOCHS), data=st.data())
    def hear(self, epoch: Epoch, data: st.DataObject) -> None:
        said = self.replica_by_epoch[epoch].said
        believed = self.believed_by_epoch.get(epoch)
        next_one = st.just(believed.num_heard if believed else 0)
        start = data.draw(next_one | st.integers(0, len(said)))
        end = data.draw(st.integers(start, len(said)))
        batch = events(start + 1, *said[start:end])
        if believed is None or start > believed.num_heard:
            with pytest.raises(KvGap):
                self.index.apply(epoch, batch)
            return
        self.index.apply(epoch, batch)
        follower = Replica()
        follower.names = believed.names
        for event in said[believed.num_heard : end]:
            follower.change(event)
        believed.num_heard = max(end, believed.num_heard)

    @rule(epoch=st.sampled_from(EPOCHS))
    def forget(self, epoch: Epoch) -> None:
        self.index.forget(epoch)
        self.believed_by_epoch.pop(epoch, None)
        self.replica_by_epoch[epoch] = Replica()
        self.expected = [one for one in self.expected if one[0].epoch != epoch]

    @rule(epoch=st.sampled_from(EPOCHS), text=PROMPTS)
    def expect(self, epoch: Epoch, text: str) -> None:
        self.expected.append((self.index.expect(chain(text), epoch), text))

    @precondition(lambda self: self.expected)
    @rule(data=st.data())
    def release(self, data: st.DataObject) -> None:
        position = data.draw(st.integers(0, len(self.expected) - 1))
        self.index.release(self.expected.pop(position)[0])

    @rule(text=PROMPTS)
    def look_up(self, text: str) -> None:
        wanted = chain(text)
        cached = {
            epoch: num_leading(wanted, believed.names)
            for epoch, believed in self.believed_by_epoch.items()
        }
        expected = dict.fromkeys(EPOCHS, 0)
        for one, prompt in self.expected:
            found = num_leading(wanted, set(chain(prompt)))
            expected[one.epoch] = max(expected[one.epoch], found)
        assert self.index.num_cached_blocks(wanted) == without_zeros(cached)
        assert self.index.num_expected_blocks(wanted) == without_zeros(expected)

    @invariant()
    def the_books_balance(self) -> None:
        for epoch in EPOCHS:
            believed = self.believed_by_epoch.get(epoch)
            assert self.index.num_blocks(epoch) == (len(believed.names) if believed else 0)


def num_leading(wanted: tuple[bytes, ...], names: set[bytes]) -> int:
    return next((n for n, name in enumerate(wanted) if name not in names), len(wanted))


def without_zeros(counts: dict[Epoch, int]) -> dict[Epoch, int]:
    return {epoch: count for epoch, count in counts.items() if count}


TestIndex = IndexMachine.TestCase
TestIndex.settings = settings(max_examples=100, stateful_step_count=40, deadline=None)
