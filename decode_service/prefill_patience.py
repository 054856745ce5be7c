"""How long a decode replica waits for a prefill replica that answers but gets nowhere. Pure.

    no news for `silence_s`               the longest silence of late, `MARGIN` times, in bounds
    no first token `compute_s` after      what so many tokens take of late, on any prefill replica,
    the grant                             `SLOW` times; unknown until a few prompts were computed

News are progress that is told, a grant, a first token, a piece of KV. A replica that was too late
is given twice the silence the next time, and is not asked for `AVOIDED_S` meanwhile; twice as long
each time, until a handoff from it succeeds. What was learnt of a silence is half gone after each
`HALF_LIFE_S`.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from dataclasses import dataclass
from math import exp2
from statistics import median

from baton.core.ids import Epoch

LEAST_S = 2.0
MOST_S = 15.0
"""Also what a replica is given of which nothing is known: its first pass may compile, or probe."""
MARGIN = 4.0
SLOW = 8.0
HALF_LIFE_S = 120.0
AVOIDED_S = 5.0
MAX_AVOIDED_S = 60.0
MAX_RATES = 33
MIN_RATES = 5
MAX_REMEMBERED = 256


@dataclass(slots=True)
class _Record:
    added_s: float = MOST_S - LEAST_S
    added_at: float = float("inf")
    """When the silence was learnt; infinite: never."""
    num_missed: int = 0
    """Handoffs that came to nothing since one succeeded."""
    avoided_until: float = float("-inf")
    why: str = ""


class PrefillPatience:
    """Of one decode replica with all prefill replicas; a record is of one incarnation."""

    def __init__(self) -> None:
        self._records: OrderedDict[Epoch, _Record] = OrderedDict()
        self._token_s: deque[float] = deque(maxlen=MAX_RATES)
        """Seconds a token, of prompts computed lately, wherever."""

    def silence_s(self, epoch: Epoch, now: float) -> float:
        """How long no news may come from it."""
        record = self._records.get(epoch)
        if record is None:
            return MOST_S
        num_half_lives = max(0.0, now - record.added_at) / HALF_LIFE_S
        return LEAST_S + record.added_s * exp2(-num_half_lives)

    def compute_s(self, num_tokens: int) -> float | None:
        """How long a prompt may take from its grant to its first token; None while nobody knows."""
        if len(self._token_s) < MIN_RATES:
            return None
        return LEAST_S + SLOW * self.usual_s(num_tokens)

    def usual_s(self, num_tokens: int) -> float:
        """How long so many tokens take of late; once some were computed."""
        return num_tokens * median(self._token_s)

    def why_avoided(self, epoch: Epoch, now: float) -> str:
        """Empty if there is nothing against asking it."""
        record = self._records.get(epoch)
        return record.why if record is not None and now < record.avoided_until else ""

    def computed(self, num_tokens: int, seconds: float) -> None:
        """A prompt of so many tokens that no cache had was computed in so long."""
        if num_tokens > 0:
            self._token_s.append(seconds / num_tokens)

    def succeeded(self, epoch: Epoch, longest_silence_s: float, now: float) -> None:
        """A handoff from it came to its end."""
        is_first = epoch not in self._records
        learnt_s = min(max(MARGIN * longest_silence_s, LEAST_S), MOST_S)
        if is_first or learnt_s >= self.silence_s(epoch, now):
            self._learn(epoch, learnt_s, now)
        self._records[epoch].num_missed = 0

    def missed(self, epoch: Epoch, why: str, now: float) -> None:
        """It got nowhere for too long."""
        self._learn(epoch, min(2 * self.silence_s(epoch, now), MOST_S), now)
        record = self._records[epoch]
        avoided_s = min(AVOIDED_S * 2**record.num_missed, MAX_AVOIDED_S)
        record.avoided_until, record.why = now + avoided_s, why
        record.num_missed += 1

    def _learn(self, epoch: Epoch, silence_s: float, now: float) -> None:
        record = self._records.setdefault(epoch, _Record())
        self._records.move_to_end(epoch)
        record.added_s, record.added_at = silence_s - LEAST_S, now
        if len(self._records) > MAX_REMEMBERED:
            self._records.popitem(last=False)
