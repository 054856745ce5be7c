"""The index of who has which blocks, held to a model that keeps one set of names a replica."""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from tests.kernels.names.both_tables import TABLES

from baton.core.block_hash import BlockNames, block_hashes
from baton.core.ids import Epoch
from baton.core.kv_events import KvChange, KvEvent, KvEvents
from baton.kernels.names.holder_table import ReferenceTable
from baton.router.cache.expected_blocks import Expected
from baton.router.cache.kv_index import STRETCH, KvGap, KvIndex

A, B, C = Epoch("a"), Epoch("b"), Epoch("c")
EPOCHS = (A, B)


def chain(text: str) -> BlockNames:
    """Names of blocks of one letter each."""
    return BlockNames.of(block_hashes(b"root", [ord(letter) for letter in text], 1))


def stored(*names: bytes) -> KvEvent:
    return KvEvent(KvChange.STORED, b"".join(names))


def evicted(*names: bytes) -> KvEvent:
    return KvEvent(KvChange.EVICTED, b"".join(names))


CLEARED = KvEvent(KvChange.CLEARED)


def snapshot(
    *names: bytes, first_sequence: int = 1, part: int = 0, has_more: bool = False
) -> KvEvents:
    return KvEvents(
        first_sequence=first_sequence,
        events=(stored(*names),),
        is_snapshot=True,
        part=part,
        has_more=has_more,
    )


def events(first_sequence: int, *changes: KvEvent) -> KvEvents:
    return KvEvents(first_sequence=first_sequence, events=changes)


def index_of(*, stretch: int = STRETCH, **text_by_epoch: str) -> KvIndex:
    index = KvIndex(ReferenceTable(), stretch=stretch)
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


def test_a_snapshot_takes_effect_at_once_when_its_last_part_is_there() -> None:
    index, names = index_of(a="old prompt"), chain("new prompt")

    for part in range(4):
        index.apply(A, snapshot(*names[2 * part :][:2], part=part, has_more=True))
        assert index.num_cached_blocks(chain("old prompt")) == {A: 10}
        assert index.num_cached_blocks(names) == {}
    index.apply(A, snapshot(*names[8:], part=4, first_sequence=7))

    assert index.num_cached_blocks(chain("old prompt")) == {}
    assert index.num_cached_blocks(names) == {A: 10}
    assert index.num_blocks(A) == 10


def test_a_snapshot_broken_off_half_way_leaves_everything_as_it_was() -> None:
    index = index_of(a="old")

    index.apply(A, snapshot(*chain("new prompt"), has_more=True))
    index.break_off(A)
    index.apply(A, events(1, stored(*chain("olds")[3:])))

    assert index.num_cached_blocks(chain("olds")) == {A: 4}
    assert index.num_cached_blocks(chain("new prompt")) == {}
    sweep(index, A, 2)
    assert len(index) == 4
    with pytest.raises(KvGap, match="part 1 of a snapshot came instead of the first"):
        index.apply(A, snapshot(part=1))


def test_parts_of_a_snapshot_that_come_twice_count_once_and_one_that_is_missing_is_missed() -> None:
    index, names = index_of(a="old"), chain("prompt")

    index.apply(A, snapshot(*names[:2], has_more=True))
    for _ in range(2):
        index.apply(A, snapshot(*names[2:4], part=1, has_more=True))
    with pytest.raises(KvGap, match="part 3 of a snapshot came instead of 2"):
        index.apply(A, snapshot(part=3))
    assert index.num_cached_blocks(chain("old")) == {A: 3}
    index.apply(A, snapshot(*names[4:], part=2))

    assert index.num_cached_blocks(names) == {A: 6}


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
    index = index_of()
    for number in range(1000):
        index.apply(Epoch(str(number)), snapshot(*chain("prompt")))
        index.forget(Epoch(str(number)))

    assert len(index) == 0
    index.apply(A, snapshot(*chain("prompt")))
    assert index._num_slots <= 4


def test_a_prompt_on_its_way_is_expected_until_it_is_released() -> None:
    index = index_of(a="")
    first, second = index.expect(chain("abcd"), A), index.expect(chain("abx"), A)
    third = index.expect(chain("a"), B)

    assert index.expected(chain("abcz")).by_epoch() == {A: 3, B: 1}
    assert index.num_cached_blocks(chain("abcz")) == {}

    index.release(first)
    index.release(first)
    assert index.expected(chain("abcz")).by_epoch() == {A: 2, B: 1}
    index.release(second)
    index.release(third)
    assert index.expected(chain("abcz")).by_epoch() == {}


def test_nothing_is_expected_of_a_replica_that_left() -> None:
    index = KvIndex()
    index.expect(chain("ab"), A)
    index.expect(chain("a"), B)

    index.forget(A)

    assert index.expected(chain("ab")).by_epoch() == {B: 1}


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


class Loading:
    """What was read of a snapshot that is not complete."""

    def __init__(self, num_said: int) -> None:
        self.num_said = num_said
        self.names: set[bytes] = set()


class IndexMachine(RuleBasedStateMachine):
    """Replicas change; some of what they say arrives, late, twice, or never.

    An index over each kind of table hears all of it, and both must answer as the model does.
    """

    @initialize(stretch=st.sampled_from([1, 3, STRETCH]), num_others=st.sampled_from([0, 70]))
    def start(self, stretch: int, num_others: int) -> None:
        self.indexes = [KvIndex(make(), stretch=stretch) for make in TABLES]
        self.others = {Epoch(str(number)): 2 for number in range(num_others)}
        for epoch in self.others:
            self.apply(epoch, snapshot(*chain("ab")))
        self.replica_by_epoch = {epoch: Replica() for epoch in EPOCHS}
        self.believed_by_epoch: dict[Epoch, Believed] = {}
        self.loading_by_epoch: dict[Epoch, Loading] = {}
        self.expected: list[tuple[list[Expected], str]] = []
        for epoch in EPOCHS:
            self.take_snapshot(epoch)

    def apply(self, epoch: Epoch, said: KvEvents) -> None:
        for index in self.indexes:
            index.apply(epoch, said)

    @rule(epoch=st.sampled_from(EPOCHS), changes=st.lists(CHANGES, min_size=1, max_size=4))
    def change(self, epoch: Epoch, changes: list[KvEvent]) -> None:
        for change in changes:
            self.replica_by_epoch[epoch].change(change)

    @rule(epoch=st.sampled_from(EPOCHS))
    def take_snapshot(self, epoch: Epoch) -> None:
        self.begin_snapshot(epoch)
        self.end_snapshot(epoch)

    @rule(epoch=st.sampled_from(EPOCHS))
    def begin_snapshot(self, epoch: Epoch) -> None:
        """What is read of it now may be otherwise when the rest is read."""
        loading = self.loading_by_epoch[epoch] = Loading(len(self.replica_by_epoch[epoch].said))
        self.load_part(epoch, loading, is_last=False)

    @precondition(lambda self: self.loading_by_epoch)
    @rule(data=st.data())
    def end_snapshot_late(self, data: st.DataObject) -> None:
        self.end_snapshot(data.draw(st.sampled_from(list(self.loading_by_epoch))))

    def end_snapshot(self, epoch: Epoch) -> None:
        loading = self.loading_by_epoch.pop(epoch)
        self.load_part(epoch, loading, is_last=True)
        self.believed_by_epoch[epoch] = Believed(loading.names, loading.num_said)

    def load_part(self, epoch: Epoch, loading: Loading, *, is_last: bool) -> None:
        names = {name for name in self.replica_by_epoch[epoch].names if name[0] % 2 == is_last}
        loading.names |= names
        self.apply(
            epoch,
            snapshot(
                *names, first_sequence=loading.num_said + 1, part=int(is_last), has_more=not is_last
            ),
        )

    @rule(epoch=st.sampled_from(EPOCHS))
    def break_off(self, epoch: Epoch) -> None:
        for index in self.indexes:
            index.break_off(epoch)
        self.loading_by_epoch.pop(epoch, None)

    @rule(epoch=st.sampled_from(EPOCHS), data=st.data())
    def observe(self, epoch: Epoch, data: st.DataObject) -> None:
        said = self.replica_by_epoch[epoch].said
        believed = self.believed_by_epoch.get(epoch)
        next_one = st.just(believed.num_heard if believed else 0)
        start = data.draw(next_one | st.integers(0, len(said)))
        end = data.draw(st.integers(start, len(said)) | st.just(len(said)))
        batch = events(start + 1, *said[start:end])
        if believed is None or start > believed.num_heard:
            for index in self.indexes:
                with pytest.raises(KvGap):
                    index.apply(epoch, batch)
            return
        self.apply(epoch, batch)
        follower = Replica()
        follower.names = believed.names
        for event in said[believed.num_heard : end]:
            follower.change(event)
        believed.num_heard = max(end, believed.num_heard)
        if believed.num_heard == len(said):
            assert believed.names == self.replica_by_epoch[epoch].names

    @rule(epoch=st.sampled_from(EPOCHS))
    def forget(self, epoch: Epoch) -> None:
        for index in self.indexes:
            index.forget(epoch)
        self.believed_by_epoch.pop(epoch, None)
        self.loading_by_epoch.pop(epoch, None)
        self.replica_by_epoch[epoch] = Replica()
        self.expected = [one for one in self.expected if one[0][0].epoch != epoch]

    @rule(epoch=st.sampled_from(EPOCHS), text=PROMPTS)
    def expect(self, epoch: Epoch, text: str) -> None:
        expected = [index.expect(chain(text), epoch) for index in self.indexes]
        self.expected.append((expected, text))

    @precondition(lambda self: self.expected)
    @rule(data=st.data())
    def release(self, data: st.DataObject) -> None:
        position = data.draw(st.integers(0, len(self.expected) - 1))
        for index, expected in zip(self.indexes, self.expected.pop(position)[0], strict=True):
            index.release(expected)

    @rule(text=PROMPTS)
    def look_up(self, text: str) -> None:
        wanted = chain(text)
        cached = {
            epoch: num_leading(wanted, believed.names)
            for epoch, believed in self.believed_by_epoch.items()
        }
        cached |= dict.fromkeys(self.others, num_leading(wanted, set(chain("ab"))))
        expected = dict.fromkeys(EPOCHS, 0)
        for (one, *_), prompt in self.expected:
            found = num_leading(wanted, set(chain(prompt)))
            expected[one.epoch] = max(expected[one.epoch], found)
        for index in self.indexes:
            assert index.num_cached_blocks(wanted) == without_zeros(cached)
            assert index.expected(wanted).by_epoch() == without_zeros(expected)

    @invariant()
    def the_books_balance(self) -> None:
        for epoch in EPOCHS:
            believed = self.believed_by_epoch.get(epoch)
            for index in self.indexes:
                assert index.num_blocks(epoch) == (len(believed.names) if believed else 0)


def num_leading(wanted: BlockNames, names: set[bytes]) -> int:
    return next((n for n, name in enumerate(wanted) if name not in names), len(wanted))


def without_zeros(counts: dict[Epoch, int]) -> dict[Epoch, int]:
    return {epoch: count for epoch, count in counts.items() if count}


TestIndex = IndexMachine.TestCase
TestIndex.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
