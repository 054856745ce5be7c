"""The replicas of one role, as this gateway knows them: updated by events, never rebuilt.

    join(info, candidate) --> KnownReplica     replica.observe(...), .connect(...), .count(...)
    leave(epoch)

Each replica writes its state into columns, so which replicas are open is known for all at once.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import numpy as np

from baton.core.ids import Epoch
from baton.core.kv_layout import KvLayout
from baton.core.replicas import Capacity, ReplicaInfo, Role
from baton.router.cache.prompt_names import WayToName, way_to_name
from baton.router.replicas.candidate import Candidate
from baton.router.replicas.candidates import Candidates, CandidateTable
from baton.router.table.columns import Mask, Numbers, Places
from baton.router.table.decode_columns import DecodeColumns
from baton.router.table.numbering import Numbering, PrefixOverlaps

_NO_PLACES = np.zeros(0, np.intp)


class KnownReplica:
    """One of them. Code that changes a fact calls `Pool.write`, except for `update` itself."""

    def __init__(self, info: ReplicaInfo, candidate: Candidate) -> None:
        self.info = info
        self.endpoint = info.endpoint
        """Address of its gRPC server: constant, whatever else changes about the replica."""
        self.candidate = candidate
        """Its estimated work, as far as this gateway knows."""
        self.is_connected = False
        self.is_away = False
        """Whether it is silent, or its stream is broken: prompts must not wait for it."""
        self.is_ordered_to_drain = False
        """Whether this gateway has ordered it to drain; its own report may be on its way."""
        self.num_open = 0
        """Requests this gateway has there."""
        self._capacity: Capacity | None = None
        self._num_open_then = 0
        """When that was said."""
        self.received_at_s: float | None = None
        """When it was said."""

    @property
    def capacity(self) -> Capacity | None:
        """Its own last word; of a decode replica, while it is connected."""
        return self._capacity

    @capacity.setter
    def capacity(self, capacity: Capacity | None) -> None:
        if capacity is not self._capacity:
            self._capacity, self._num_open_then = capacity, self.num_open

    def age_s(self, now: float) -> float | None:
        """How long ago its last word was said. It says something each second while it
        has anything to do, so much more is a sign. None: it has said none."""
        return None if self.received_at_s is None else now - self.received_at_s

    @property
    def max_open(self) -> int:
        """Requests of this gateway that it takes, if it decodes."""
        return self.info.max_open if self.capacity is None else self.capacity.max_open

    @property
    def has_room(self) -> bool:
        return self.num_open < self.max_open

    @property
    def is_draining(self) -> bool:
        says_so = self.capacity is not None and self.capacity.is_draining
        return says_so or self.is_ordered_to_drain or not self.info.is_ready

    @property
    def is_open(self) -> bool:
        """Whether a decode replica would take one more request."""
        return self.is_connected and self.has_room and not self.is_draining

    @property
    def num_since(self) -> int:
        """Requests more that this gateway has there than when it said its last word."""
        return self.num_open - self._num_open_then

    @property
    def num_requests(self) -> int:
        """Requests of all gateways that decode there, or are about to: by its last word and what
        was sent since."""
        capacity = self._capacity
        num_reported = 0 if capacity is None else capacity.num_running + capacity.num_waiting
        return max(num_reported, self._num_open_then) + self.num_since


class Pool:
    def __init__(self) -> None:
        self.replicas: list[KnownReplica] = []
        self.table = CandidateTable()
        """The replicas' candidates, in the same order."""
        self._row_by_epoch: dict[Epoch, int] = {}
        self._is_open = np.zeros(0, bool)
        self._is_draining = np.zeros(0, bool)
        self._is_connected = np.zeros(0, bool)
        self._is_away = np.zeros(0, bool)
        self.decoding = DecodeColumns()
        """The state of decode replicas, in the same order."""
        self.num_open = self.num_draining = self.num_away = self.num_taking = 0
        """Replicas of which it holds; those that take requests may be full."""
        self._block_sizes = self._nothing = np.zeros(0)
        """[pool] Tokens of a block; and what each has of no prompt."""
        self._numbers_by_numbering: dict[Numbering, tuple[int, Places]] = {}
        """Which version, and the replicas' numbers by it."""
        self._num_by_way = Counter[WayToName]()
        self.layouts: tuple[KvLayout, ...] = ()
        """One of each way to name blocks,"""
        self.ways: tuple[WayToName, ...] = ()
        """which are these."""

    def __len__(self) -> int:
        return len(self.replicas)

    def __contains__(self, epoch: object) -> bool:
        return epoch in self._row_by_epoch

    @property
    def candidates(self) -> Candidates:
        return self.table.all

    @property
    def is_open(self) -> Mask:
        """[pool] Whether each would take one more request to decode."""
        return self._is_open

    @property
    def is_draining(self) -> Mask:
        return self._is_draining

    @property
    def is_connected(self) -> Mask:
        return self._is_connected

    @property
    def is_away(self) -> Mask:
        return self._is_away

    def replica(self, epoch: Epoch) -> KnownReplica | None:
        row = self._row_by_epoch.get(epoch)
        return None if row is None else self.replicas[row]

    def row(self, epoch: Epoch) -> int | None:
        return self._row_by_epoch.get(epoch)

    def is_one_of(self, epochs: frozenset[Epoch]) -> Mask:
        found = np.zeros(len(self), bool)
        for epoch in epochs:
            row = self._row_by_epoch.get(epoch)
            if row is not None:
                found[row] = True
        return found

    def join(self, replica: KnownReplica) -> None:
        layout = replica.info.layout
        self._row_by_epoch[replica.info.epoch] = len(self)
        self.replicas.append(replica)
        self.table.add(replica.candidate)
        self._is_open = np.append(self._is_open, False)
        self._is_draining = np.append(self._is_draining, False)
        self._is_connected = np.append(self._is_connected, False)
        self._is_away = np.append(self._is_away, False)
        self.decoding.add()
        self._block_sizes = np.append(self._block_sizes, float(layout.block_size))
        self._nothing = np.zeros(len(self))
        self.write(replica)
        way = way_to_name(layout)
        self._num_by_way[way] += 1
        if way not in self.ways:
            self.layouts += (layout,)
            self.ways += (way,)
        self._numbers_by_numbering.clear()

    def leave(self, epoch: Epoch) -> None:
        row = self._row_by_epoch[epoch]
        replica = self.replicas.pop(row)
        self.table.remove(replica.candidate)
        self.num_open -= bool(self._is_open[row])
        self.num_draining -= bool(self._is_draining[row])
        self.num_away -= bool(self._is_away[row])
        self.num_taking -= self._takes(row)
        del self._row_by_epoch[epoch]
        for place, behind in enumerate(self.replicas[row:], start=row):
            self._row_by_epoch[behind.info.epoch] = place
        self._is_open = np.delete(self._is_open, row)
        self._is_draining = np.delete(self._is_draining, row)
        self._is_connected = np.delete(self._is_connected, row)
        self._is_away = np.delete(self._is_away, row)
        self.decoding.remove(row)
        self._block_sizes = np.delete(self._block_sizes, row)
        self._nothing = np.zeros(len(self))
        way = way_to_name(replica.info.layout)
        self._num_by_way[way] -= 1
        if not self._num_by_way[way]:
            self.layouts = tuple(one for one in self.layouts if way_to_name(one) != way)
            self.ways = tuple(one for one in self.ways if one != way)
        self._numbers_by_numbering.clear()

    def write(self, replica: KnownReplica) -> None:
        """Something is new of it."""
        row = self._row_by_epoch[replica.info.epoch]
        is_open, is_draining, is_away = replica.is_open, replica.is_draining, replica.is_away
        self.num_open += is_open - bool(self._is_open[row])
        self.num_draining += is_draining - bool(self._is_draining[row])
        self.num_away += is_away - bool(self._is_away[row])
        took = self._takes(row)
        self._is_open[row], self._is_draining[row] = is_open, is_draining
        self._is_connected[row], self._is_away[row] = replica.is_connected, is_away
        self.num_taking += self._takes(row) - took
        if replica.info.role is Role.DECODE:
            self.decoding.write(
                row,
                replica.capacity,
                replica.received_at_s,
                num_requests=replica.num_requests,
                num_since=max(replica.num_since, 0),
                block_size=replica.info.layout.block_size,
            )

    def _takes(self, row: int) -> bool:
        return bool(self._is_connected[row] and not self._is_draining[row])

    def tokens(self, every: Sequence[PrefixOverlaps]) -> Numbers:
        """[pool] Tokens in the leading blocks that each has of a prompt.

        One of `every` for each way to name blocks: replicas with another way have none of these.
        """
        if not every:
            return self._nothing
        if len(every) == 1:
            [(numbering, by_number)] = every
            overlaps = by_number.take(self._numbers(numbering))
        else:
            found = [one.by_number.take(self._numbers(one.numbering)) for one in every]
            overlaps = np.maximum.reduce(found)
        return self._block_sizes * overlaps

    def _numbers(self, numbering: Numbering) -> Places:
        version, numbers = self._numbers_by_numbering.get(numbering, (-1, _NO_PLACES))
        if version != numbering.version:
            numbers = numbering.of([one.info.epoch for one in self.replicas])
            self._numbers_by_numbering[numbering] = numbering.version, numbers
        return numbers
