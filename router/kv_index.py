"""Which replica has which blocks of KV, as the replicas' own events tell it.

    by_name     block name -> the slots of the replicas that have it, a bit each     1 entry a block
    expected    prompts on their way to a replica: not stored there yet, but soon

A replica's *slot* is its number among the bits. A snapshot fills a new slot while the old one still
answers, then takes its place; a replica that leaves loses its slot. Either way the old slot is dead
at once, as its bit is masked out of every answer, and is swept out of `by_name` bit by bit, a
stretch with each call that changes something: no call takes long, however many blocks there are.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import dataclass

from baton.core.ids import Epoch
from baton.core.kv_events import KvChange, KvEvent, KvEvents, split_names

STRETCH = 4096
"""Names that are loaded, or swept, in one go: about a millisecond."""

MAX_EQUAL_SLOTS = 10_000


class KvGap(Exception):
    """Events were missed: only a snapshot can tell what the replica has."""


@dataclass(frozen=True, slots=True, eq=False)
class Expected:
    """The blocks of one prompt that a replica will soon have, or has already."""

    hashes: Sequence[bytes]
    epoch: Epoch


@dataclass(slots=True)
class _Known:
    """What is known of one replica."""

    slot: int
    next_sequence: int
    num_blocks: int = 0


class KvIndex:
    def __init__(self, *, stretch: int = STRETCH) -> None:
        self._stretch = stretch
        self._slots_by_name: dict[bytes, int] = {}
        self._known_by_epoch: dict[Epoch, _Known] = {}
        self._epoch_by_slot: dict[int, Epoch] = {}
        self._num_slots = 0
        self._free_slots: list[int] = []
        self._live = 0
        """A bit for each slot in `_epoch_by_slot`."""
        self._dead = 0
        """Bits of slots to be swept; some names may still have them."""
        self._sweeping = 0
        """Bits of the dead slots that the sweep under way takes out."""
        self._unswept: list[bytes] = []
        self._equal_slots: dict[int, int] = {}
        """Equal sets of slots are one object, of which a million entries take no memory."""
        self._expected_by_first: dict[bytes, set[Expected]] = {}
        """By the first name: only prompts that begin alike have anything in common."""

    def __len__(self) -> int:
        """Names in memory, including those that await the sweep."""
        return len(self._slots_by_name)

    def num_blocks(self, epoch: Epoch) -> int:
        known = self._known_by_epoch.get(epoch)
        return known.num_blocks if known is not None else 0

    # What the replicas say.

    def apply(self, epoch: Epoch, events: KvEvents) -> None:
        """Follow `epoch` from where it is known. Raises KvGap, with nothing changed, if it is not.

        Events that are known already are passed over.
        """
        if events.is_snapshot:
            for _ in self.load(epoch, events):
                pass
            return
        known = self._known_by_epoch.get(epoch)
        if known is None or events.first_sequence > known.next_sequence:
            expected = known.next_sequence if known is not None else "a snapshot"
            raise KvGap(f"event {events.first_sequence} came instead of {expected}")
        for event in events.events[known.next_sequence - events.first_sequence :]:
            self._apply_event(epoch, known, event)
            known.next_sequence += 1
        self._sweep()

    def load(self, epoch: Epoch, snapshot: KvEvents) -> Generator[None, None, None]:
        """Know of `epoch` what `snapshot` says, and nothing else, once the iterator has ended.

        Other calls may come in between; until the end, what was known before holds. Given up
        half-way, it leaves everything as it was.
        """
        loading = _Known(self._take_slot(), snapshot.next_sequence)
        names = (name for event in snapshot.events for name in split_names(event.names))
        try:
            for count, name in enumerate(names, start=1):
                self._add(loading, name)
                if not count % self._stretch:
                    self._sweep()
                    yield
        except BaseException:
            self._dead |= 1 << loading.slot
            raise
        before = self._known_by_epoch.get(epoch)
        if before is not None:
            self._retire(before.slot)
        self._activate(epoch, loading)
        self._sweep()

    def forget(self, epoch: Epoch) -> None:
        """A replica is gone, and its cache with it."""
        for group in list(self._expected_by_first.values()):
            for expected in [one for one in group if one.epoch == epoch]:
                self.release(expected)
        known = self._known_by_epoch.pop(epoch, None)
        if known is not None:
            self._retire(known.slot)
            self._sweep()

    # What is placed by this gateway.

    def expect(self, hashes: Sequence[bytes], epoch: Epoch) -> Expected:
        """Count the blocks as on their way to `epoch`, until given back to `release`."""
        expected = Expected(hashes, epoch)
        if hashes:
            self._expected_by_first.setdefault(hashes[0], set()).add(expected)
        return expected

    def release(self, expected: Expected) -> None:
        """Safe to repeat."""
        if not expected.hashes:
            return
        group = self._expected_by_first.get(expected.hashes[0], set())
        group.discard(expected)
        if not group:
            self._expected_by_first.pop(expected.hashes[0], None)

    # What a placement asks. `hashes` are chained: equal at one depth, they are equal before it.

    def num_cached_blocks(self, hashes: Sequence[bytes]) -> dict[Epoch, int]:
        """By replica: how many leading blocks it has. Those with none are left out."""
        counts: dict[Epoch, int] = {}
        holders = self._live
        for depth, name in enumerate(hashes):
            still = holders & self._slots_by_name.get(name, 0)
            self._count(holders & ~still, depth, counts)
            holders = still
            if not holders:
                break
        self._count(holders, len(hashes), counts)
        return counts

    def num_expected_blocks(self, hashes: Sequence[bytes]) -> dict[Epoch, int]:
        """The same of blocks on their way, whether or not they have arrived."""
        counts: dict[Epoch, int] = {}
        for expected in self._expected_by_first.get(hashes[0], ()) if hashes else ():
            depth = counts.get(expected.epoch, 0)
            longest = min(len(expected.hashes), len(hashes))
            if depth < longest and expected.hashes[depth] == hashes[depth]:
                counts[expected.epoch] = _num_common(expected.hashes, hashes, depth + 1, longest)
        return counts

    def _count(self, slots: int, depth: int, counts: dict[Epoch, int]) -> None:
        while slots and depth:
            slot = slots.bit_length() - 1
            slots ^= 1 << slot
            counts[self._epoch_by_slot[slot]] = depth

    def _apply_event(self, epoch: Epoch, known: _Known, event: KvEvent) -> None:
        match event.change:
            case KvChange.STORED:
                for name in split_names(event.names):
                    self._add(known, name)
            case KvChange.EVICTED:
                for name in split_names(event.names):
                    self._remove(known, name)
            case KvChange.CLEARED:
                self._retire(known.slot)
                known.slot, known.num_blocks = self._take_slot(), 0
                self._activate(epoch, known)

    def _add(self, known: _Known, name: bytes) -> None:
        slots = self._slots_by_name.get(name, 0)
        more = slots | 1 << known.slot
        if more != slots:
            self._put(name, more)
            known.num_blocks += 1

    def _remove(self, known: _Known, name: bytes) -> None:
        slots = self._slots_by_name.get(name, 0)
        fewer = slots & ~(1 << known.slot)
        if fewer != slots:
            self._put(name, fewer)
            known.num_blocks -= 1

    def _put(self, name: bytes, slots: int) -> None:
        if not slots:
            del self._slots_by_name[name]
            return
        if len(self._equal_slots) > MAX_EQUAL_SLOTS:
            self._equal_slots.clear()
        self._slots_by_name[name] = self._equal_slots.setdefault(slots, slots)

    # Slots: free -> taken -> live -> dead -> swept, hence free again.

    def _take_slot(self) -> int:
        if self._free_slots:
            return self._free_slots.pop()
        self._num_slots += 1
        return self._num_slots - 1

    def _activate(self, epoch: Epoch, known: _Known) -> None:
        self._known_by_epoch[epoch] = known
        self._epoch_by_slot[known.slot] = epoch
        self._live |= 1 << known.slot

    def _retire(self, slot: int) -> None:
        del self._epoch_by_slot[slot]
        self._live &= ~(1 << slot)
        self._dead |= 1 << slot

    def _sweep(self) -> None:
        """Take dead slots out of the next stretch of names."""
        if not self._sweeping:
            if not self._dead:
                return
            # Names that come later cannot have these slots: a dead slot is given to nobody.
            self._sweeping, self._unswept = self._dead, list(self._slots_by_name)
        names, self._unswept[-self._stretch :] = self._unswept[-self._stretch :], []
        for name in names:
            slots = self._slots_by_name.get(name, 0)
            if slots & self._sweeping:
                self._put(name, slots & ~self._sweeping)
        if not self._unswept:
            self._dead &= ~self._sweeping
            self._free_slots += _members(self._sweeping)
            self._sweeping = 0


def _members(slots: int) -> list[int]:
    return [slot for slot in range(slots.bit_length()) if slots >> slot & 1]


def _num_common(one: Sequence[bytes], other: Sequence[bytes], least: int, most: int) -> int:
    """How many leading names two chains share, which is known to be `least` to `most`."""
    while least < most:
        middle = (least + most + 1) // 2
        if one[middle - 1] == other[middle - 1]:
            least = middle
        else:
            most = middle - 1
    return least
