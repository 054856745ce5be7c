"""How long a replica waits for another one that answers but makes no progress. Pure.

    no news for `silence_s` --> given up, not asked for 5 s --> asked by one prompt
                                          ^ (10 s, 15 s)        | no progress    | succeeds
                                          `---------------------'                `--> asked by all

News are reported progress, a grant, a first token, an offer, or a piece of KV. Before everything
has been computed, a source that sends news is not given up, however long it takes. `silence_s` is
the longest recent silence times `MARGIN`, within bounds; the part of it above `LEAST_S` halves in
each `HALF_LIFE_S`. A source that was too late gets twice the silence the next time. However many
handoffs a stall ends, it counts once.

Once everything is ready to be sent (for a pull: from the beginning), a replica that could compute
the missing part waits without news as long as computing it would take, and at least a part of
`silence_s`; and it waits for a slow source while the rest is expected within twice that time. A
source that is too late by this rule once is asked again all the same: perhaps only that transfer
was late.

In any case KV must arrive at a rate: a part of the rate at which the source's recent transfers
arrived by the same transport, shared by all transfers that arrive at this moment. A source that was
too slow gets twice the time.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, field
from math import exp2, inf
from typing import NamedTuple

from baton.core.ids import Epoch

LEAST_S = 5.0
"""Least seconds of silence allowed: a healthy replica may be compiling a graph, or reading an
adapter."""
MOST_S = 15.0
"""Most seconds of silence allowed; also those of a replica of which nothing is known."""
LATE_PART = 0.2
"""Share of the silence allowed that is waited for even what is computed sooner."""
MARGIN = 4.0
HALF_LIFE_S = 120.0
AVOIDED_S = 5.0
MAX_AVOIDED_S = 15.0
MAX_REMEMBERED = 256
TOO_LATE = 2.0
"""What takes so many times as long to come as to be computed is computed."""
TOO_SLOW = 64.0
"""A transfer at less than its usual rate over this is too slow. So much, since a source that sends
to many others is slow to each, and the receiver cannot know."""
UNKNOWN_BYTES_PER_S = float(1 << 20)
"""What a source must send at least of which no rate is known."""
RATED_BYTES = 1 << 20
"""A shorter transfer says little of a rate."""
RATE_WEIGHT = 0.25
"""Weight of the last transfer in the usual rate."""


@dataclass(slots=True)
class _Record:
    learnt_at: float
    added_s: float
    """Seconds by which its silence exceeded the least when it was learnt."""
    missed_at: float = float("-inf")
    avoided_s: float = 0.0
    """What it was last left alone for; 0 once a handoff has succeeded since."""
    avoided_until: float = float("-inf")
    why: str = ""
    num_late: int = 0
    """Handoffs, since one succeeded, that were not worth waiting for."""
    bytes_per_s: dict[str, float] = field(default_factory=dict)
    """Usual rate of its transfers, by transport; none while that is not known."""


class MissingKv(NamedTuple):
    """The part of a transfer that has not arrived."""

    num_bytes: int = 0
    here_s: float = inf
    """Seconds in which it would be computed instead."""


class SourcePatience:
    """One replica's patience with all that it gets KV from; a record is of one incarnation."""

    def __init__(self) -> None:
        self.num_coming = 0
        """Transfers of which all is there to be sent, from any source: they share the way here."""
        self._records: OrderedDict[Epoch, _Record] = OrderedDict()

    def silence_s(self, epoch: Epoch, now: float) -> float:
        """How long no news may come from it."""
        record = self._records.get(epoch)
        return MOST_S if record is None else _silence_s(record, now)

    def is_worth_waiting(self, epoch: Epoch, waited_s: float, left: MissingKv, now: float) -> bool:
        """Whether it is, for what is there to be sent, after so long."""
        return waited_s < max(self.late_s(epoch, now), left.here_s)

    def late_s(self, epoch: Epoch, now: float) -> float:
        """How long it is waited for whatever it would take to compute what is missing."""
        return LATE_PART * self.silence_s(epoch, now)

    def why_avoided(self, epoch: Epoch, now: float) -> str:
        """Empty if there is nothing against asking it."""
        record = self._records.get(epoch)
        return record.why if record is not None and now < record.avoided_until else ""

    def asked(self, epoch: Epoch, now: float) -> None:
        """A handoff from it begins: if it was avoided, the others wait for how this one ends."""
        record = self._records.get(epoch)
        if record is not None and record.avoided_s:
            record.avoided_until = now + _silence_s(record, now)  # it may be cancelled as well

    def succeeded(self, epoch: Epoch, longest_silence_s: float, now: float) -> None:
        """A handoff from it came to its end."""
        record = self._record(epoch, now)
        _raise_silence(record, MARGIN * longest_silence_s, now)
        record.avoided_s, record.avoided_until, record.num_late = 0.0, now, 0

    def least_bytes_per_s(self, epoch: Epoch, transport: str) -> float:
        """Least bytes a second of a transfer from it, once all of it is there to be sent."""
        record = self._records.get(epoch)
        usual = record.bytes_per_s.get(transport, 0.0) if record is not None else 0.0
        return (usual / TOO_SLOW or UNKNOWN_BYTES_PER_S) / max(1, self.num_coming)

    def came(
        self, epoch: Epoch, transport: str, num_bytes: int, seconds: float, now: float
    ) -> None:
        """A transfer from it came to its end, and took so long from its first request on."""
        if num_bytes < RATED_BYTES or seconds <= 0:
            return
        record, rate = self._record(epoch, now), num_bytes / seconds
        usual = record.bytes_per_s.get(transport, rate)
        record.bytes_per_s[transport] = usual + RATE_WEIGHT * (rate - usual)

    def was_slow(self, epoch: Epoch, transport: str, now: float) -> None:
        """Note that a source sent less than the least: perhaps that is its rate."""
        rates = self._record(epoch, now).bytes_per_s
        rates[transport] = rates.get(transport, TOO_SLOW * UNKNOWN_BYTES_PER_S) / 2

    def was_late(self, epoch: Epoch, why: str, began_at: float, now: float) -> None:
        """Note that it was not worth waiting for a source. One that is late again has missed."""
        record = self._record(epoch, now)
        record.num_late += 1
        if record.num_late > 1:
            self.missed(epoch, why, began_at, now)

    def missed(self, epoch: Epoch, why: str, began_at: float, now: float) -> None:
        """Note that a source got nowhere for too long, in a handoff that began at `began_at`."""
        record = self._record(epoch, now)
        if began_at <= record.missed_at:
            return  # the stall that has been counted
        _raise_silence(record, 2 * _silence_s(record, now), now)
        record.avoided_s = min(max(AVOIDED_S, 2 * record.avoided_s), MAX_AVOIDED_S)
        record.missed_at, record.avoided_until, record.why = now, now + record.avoided_s, why

    def _record(self, epoch: Epoch, now: float) -> _Record:
        record = self._records.setdefault(epoch, _Record(now, MOST_S - LEAST_S))
        self._records.move_to_end(epoch)
        if len(self._records) > MAX_REMEMBERED:
            self._records.popitem(last=False)
        return record


def _silence_s(record: _Record, now: float) -> float:
    num_half_lives = max(0.0, now - record.learnt_at) / HALF_LIFE_S
    return LEAST_S + record.added_s * exp2(-num_half_lives)


def _raise_silence(record: _Record, silence_s: float, now: float) -> None:
    """Raise the silence allowed to `silence_s`, if it is less; it comes down by time alone."""
    silence_s = min(silence_s, MOST_S)
    if silence_s >= _silence_s(record, now):
        record.added_s, record.learnt_at = silence_s - LEAST_S, now
