"""Which senders have sent bad bytes lately. Pure.

    max_corrupt bad pieces within window_s --> avoided for avoid_s, then trusted again

A sender is one incarnation of a process: what comes after it begins with a clean record.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from dataclasses import dataclass, field

from baton.core.ids import Epoch
from baton.core.wording import count_of
from baton.kv_transfer.config import DEFAULTS

MAX_REMEMBERED = 256


@dataclass(slots=True)
class _Record:
    address: str
    num_corrupt: int = 0
    recent: deque[float] = field(default_factory=deque)
    """Times at which the latest bad pieces came."""
    avoided_until: float = float("-inf")


class SourceScores:
    def __init__(
        self,
        *,
        max_corrupt: int = DEFAULTS.max_corrupt,
        window_s: float = 60.0,
        avoid_s: float = 60.0,
    ) -> None:
        self._max_corrupt = max_corrupt
        self._window_s = window_s
        self._avoid_s = avoid_s
        self._records: OrderedDict[Epoch, _Record] = OrderedDict()

    def record(self, epoch: Epoch, address: str, now: float) -> None:
        """A bad piece came from there."""
        record = self._records.setdefault(epoch, _Record(address))
        self._records.move_to_end(epoch)
        if len(self._records) > MAX_REMEMBERED:
            self._records.popitem(last=False)
        record.num_corrupt += 1
        record.recent.append(now)
        while record.recent[0] < now - self._window_s:
            record.recent.popleft()
        if len(record.recent) >= self._max_corrupt:
            record.avoided_until = now + self._avoid_s
            record.recent.clear()

    def why_avoided(self, epoch: Epoch, now: float) -> str:
        """Empty if there is nothing against asking it."""
        record = self._records.get(epoch)
        if record is None or now >= record.avoided_until:
            return ""
        return f"it has sent {count_of(record.num_corrupt, 'corrupt piece')} of KV"

    def metrics(self, now: float) -> dict[str, float]:
        """Metrics by Prometheus name."""
        corrupt = {
            f'pieces_corrupt_by_source_total{{source="{record.address}"}}': record.num_corrupt
            for record in self._records.values()
        }
        num_avoided = sum(now < record.avoided_until for record in self._records.values())
        return {**corrupt, "sources_avoided": num_avoided}
