"""Counters of a receiver, since it was started."""

from __future__ import annotations

import threading
from collections import Counter
from dataclasses import dataclass, field

from baton.core.ids import Epoch


@dataclass(slots=True, kw_only=True)
class FillCounters:
    """Totals of all leases of a receiver, counted on whichever thread fills them."""

    num_bytes: int = 0
    """Verified and recorded, in the senders' layouts."""
    num_corrupt: Counter[Epoch] = field(default_factory=Counter)
    """Bad pieces, by the epoch of the sender they came from."""
    num_asked_again: int = 0
    """Bad pieces that were asked for again."""
    _lock: threading.Lock = field(default_factory=threading.Lock, repr=False, compare=False)

    def filled(self, num_bytes: int) -> None:
        with self._lock:
            self.num_bytes += num_bytes

    def refused(self, source: Epoch) -> None:
        with self._lock:
            self.num_corrupt[source] += 1

    def asked_again(self, num_pieces: int) -> None:
        with self._lock:
            self.num_asked_again += num_pieces


@dataclass(slots=True, kw_only=True)
class ReceiverCounters(FillCounters):
    num_reserved: int = 0
    num_refused: int = 0
    """Reservations that did not fit."""
    num_sealed: int = 0
    num_adopted: int = 0
    num_aborted: Counter[str] = field(default_factory=Counter)
    """Aborted transfers by reason."""
    num_kept_tokens: int = 0
    """Tokens of these that came, and stayed in the prefix cache."""
