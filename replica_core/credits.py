"""Credit-based flow control: requests or tokens that each gateway may send without asking.

    gateway                 replica
      | <- may have 12 (7) ---- |   credit 7 is a level, not an amount: sent twice, it counts once
      | -- 30 wait, by 7 -----> |   demand, and the credit in force
      | <- may have 40 (8) ---- |

Every gateway has a small minimum, so that a first request needs no round trip. The rest goes to
gateways that need it, fairly (each as much as it wants, as long as none with less wants more); what
is then left goes to those at work, or to all if none is. The demand of a gateway counts for
`KEEP_S`.

A gateway may use its old credit until it learns of a lower one. So credit taken from one is lent to
another only after the first has confirmed its new credit and used up what it had sent: in total
gateways never have more than the budget, except for minimums. A gateway that does not confirm
within `RECALL_S` is not awaited, and the credit of an ended stream returns.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Generic, NamedTuple, TypeVar

FLOOR_SHARE = 64
"""The floor is this part of the budget, but at least 1."""
STEP_SHARE = 16
"""While all gateways have enough, changes below this part of the budget are skipped."""
KEEP_S = 2.0
"""Seconds for which a gateway keeps what it wanted when it wants less."""
REVIEW_S = 0.1
"""Seconds between reviews of time-dependent changes while nothing else happens."""
RECALL_S = 2.0
"""Seconds for a gateway to confirm a lower credit."""

B = TypeVar("B", bound=Hashable)


class Credit(NamedTuple):
    id: int
    """Grows with each change."""
    num: int


@dataclass(slots=True)
class _Borrower:
    demand: int = 0
    wanted: int = 0
    wanted_until: float = 0.0
    granted: list[Credit] = field(default_factory=list)
    """The confirmed credit, and those sent since; the last is the current one."""
    granted_at: list[float] = field(default_factory=list)
    """The time at which each of them was reported."""

    def want(self, used: int, now: float) -> int:
        want = used + self.demand
        if want >= self.wanted or now >= self.wanted_until:
            self.wanted, self.wanted_until = want, now + KEEP_S
        return self.wanted

    def forget(self) -> None:
        """Drop the first credit, since a later one is confirmed."""
        del self.granted[0], self.granted_at[0]

    def promised(self, used: int, now: float) -> int:
        """The most that it may have now, or has."""
        while len(self.granted) > 1 and now - self.granted_at[1] >= RECALL_S:
            self.forget()
        return max(used, *(credit.num for credit in self.granted)) if self.granted else used


class Credits(Generic[B]):
    """Pure apart from its state: time and usage are parameters."""

    def __init__(self, budget: int) -> None:
        self.budget = budget
        """The total to lend; may change."""
        self._borrowers: dict[B, _Borrower] = {}
        self._last_id = 0
        self._num_words = 0
        """Heard so far: a change of anything but of what is used."""
        self._asked: object = None
        """The last arguments of `lend`, and its answer."""
        self._lent: dict[B, Credit] = {}
        self._lent_at = float("-inf")

    def join(self, borrower: B) -> None:
        self._borrowers[borrower] = _Borrower()
        self._num_words += 1

    def leave(self, borrower: B) -> None:
        """Its credit returns."""
        self._borrowers.pop(borrower, None)
        self._num_words += 1

    def observe(self, borrower: B, *, demand: int, credit_id: int) -> None:
        """Take a gateway's demand and confirmed credit. Ignored for one that has left."""
        known = self._borrowers.get(borrower)
        if known is None:
            return
        known.demand = demand
        self._num_words += 1
        while len(known.granted) > 1 and known.granted[1].id <= credit_id:
            known.forget()

    def lend(self, used: Mapping[B, int], now: float) -> Mapping[B, Credit]:
        """Each gateway's credit, including what it uses."""
        asked = (self._num_words, self.budget, tuple(used.values()))
        if asked != self._asked or now - self._lent_at >= REVIEW_S:
            self._lent = self._divide(used, now)
            self._asked, self._lent_at = asked, now
        return self._lent

    def _divide(self, used: Mapping[B, int], now: float) -> dict[B, Credit]:
        wants = [known.want(used.get(b, 0), now) for b, known in self._borrowers.items()]
        shares = _shares(wants, self.budget)
        is_short = any(share < want for share, want in zip(shares, wants, strict=True))
        step = 1 if is_short else max(1, self.budget // STEP_SHARE)
        due: list[tuple[_Borrower, int, int]] = []
        for (b, known), share, want in zip(self._borrowers.items(), shares, wants, strict=True):
            current = known.granted[-1].num if known.granted else 0
            if not current or current < min(share, want) or abs(share - current) >= step:
                due.append((known, used.get(b, 0), share))
            if share < current and current - share >= step:
                self._grant(known, share, now)
        free = self.budget - sum(
            known.promised(used.get(b, 0), now) for b, known in self._borrowers.items()
        )
        for known, num_used, share in due:
            promised = known.promised(num_used, now)
            num = max(min(share, promised + max(free, 0)), floor_of(self.budget))
            if not known.granted or num > known.granted[-1].num:
                free -= max(0, num - promised)
                self._grant(known, num, now)
        return {b: known.granted[-1] for b, known in self._borrowers.items()}

    def _grant(self, known: _Borrower, num: int, now: float) -> None:
        self._last_id += 1
        known.granted.append(Credit(self._last_id, num))
        known.granted_at.append(now)


def floor_of(budget: int) -> int:
    return max(1, budget // FLOOR_SHARE)


def _shares(wants: Sequence[int], budget: int) -> list[int]:
    """Floors for all, then the rest to the wants, the smallest first, then what is left."""
    floor = floor_of(budget)
    shares = [floor] * len(wants)
    rest = budget - sum(shares)
    by_want = sorted(range(len(wants)), key=wants.__getitem__)
    for number, i in enumerate(by_want):
        extra = min(max(0, wants[i] - floor), max(0, rest) // (len(by_want) - number))
        shares[i] += extra
        rest -= extra
    at_work = [i for i, want in enumerate(wants) if want] or list(range(len(wants)))
    for i in at_work:
        shares[i] += max(0, rest) // len(at_work)
    return shares
