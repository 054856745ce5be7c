"""What drafts would be worth while drafting is paused: some are made, and none are verified.

    look      now and then a draft of one request; it costs no row
    compare   at the next look: how much of the draft it got. Then another's turn comes, at once:
              after a turn of all the others it would be gone before its draft was looked at again
    gain      tokens a draft, less what its rows would have cost; a running mean

So a pause ends when drafts have become better, and goes on where a trial would gain nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from baton.core.clock import Clock
from baton.engine.request.request import Request
from baton.engine.speculation.acceptance_rates import AcceptanceRates
from baton.engine.speculation.drafter import Draft, Drafter

SHARE, LEAST_SHARE = 0.001, 0.00025
"""Share of the time that looking may take at first, and however often it came to nothing."""
HALVING = 32
"""Drafts that were not worth it behind which the share is half."""
WORTH = 0.4
"""Gain, in tokens a draft, from which on drafting is tried."""
MIN_RUNNING = 4
"""Requests from which on drafts are looked at: of fewer a lucky draft or two say too little."""
MEMORY = 16
"""Drafts that the mean is of, about, beside one of each request that runs."""


class _Kept(NamedTuple):
    request: Request
    draft: Draft
    position: int
    num_worth: int
    """The first tokens of it, that would have been verified."""


class Watch:
    """Belongs to the engine's thread. For drafters whose drafts cost next to nothing."""

    def __init__(self, drafter: Drafter, acceptance: AcceptanceRates, max_tokens: int) -> None:
        self._drafter = drafter
        self._acceptance = acceptance
        self._max_tokens = max_tokens
        self._kept: _Kept | None = None
        self._allowed_s = self._look_s = 0.0
        """Seconds that may be spent, and those that a look takes."""
        self._turn = 0
        self._num_in_vain = 0
        """Drafts compared since some were worth it."""
        self.begin_rest()

    def begin_rest(self) -> None:
        """What was seen in the rest before says nothing of this one."""
        self._kept = None
        self.gain = 0.0
        self.num_compared = 0

    def was_right(self) -> None:
        """A rest has ended because of what was seen."""
        self._num_in_vain = 0

    @property
    def is_due(self) -> bool:
        return self._allowed_s >= self._look_s

    @property
    def due_in_s(self) -> float:
        """Seconds of steps until it is; 0 if it is, or more."""
        return max(0.0, self._look_s - self._allowed_s) / self._share

    def allow(self, seconds: float) -> None:
        """So much time has passed."""
        self._allowed_s = min(self._allowed_s + self._share * seconds, 2 * self._look_s)

    def look(self, running: Sequence[Request], row_price: float, clock: Clock) -> None:
        """`row_price`: what a verified token costs, in tokens."""
        started_at = clock()
        kept = self._kept
        if (
            kept is None
            or kept.request not in running
            or self._is_over(kept, len(running), row_price)
        ):
            self._turn = (self._turn + 1) % len(running)
            request = running[self._turn]
            (draft,) = self._drafter.propose((request,), self._max_tokens)
            hopes = self._acceptance.of(request, draft.confidences)
            num_worth = sum([hope > row_price for hope in hopes])
            self._kept = _Kept(request, draft, len(request.tokens), num_worth)
        seconds = clock() - started_at
        self._look_s += (seconds - self._look_s) / 8 if self._look_s else seconds
        self._allowed_s -= seconds

    def forget(self, request: Request) -> None:
        if self._kept is not None and self._kept.request is request:
            self._kept = None

    @property
    def _share(self) -> float:
        return max(LEAST_SHARE, SHARE * HALVING / (HALVING + self._num_in_vain))

    def _is_over(self, kept: _Kept, num_running: int, row_price: float) -> bool:
        """Whether all is known of the draft."""
        request = kept.request
        drafted = kept.draft.tokens
        came = request.tokens[kept.position : kept.position + len(drafted)]
        num_right = 0
        while num_right < len(came) and came[num_right] == drafted[num_right]:
            num_right += 1
        if num_right == len(came) < len(drafted):
            return False
        if drafted:
            self._acceptance.learn(request, kept.draft.confidences, num_right)
        gain = min(num_right, kept.num_worth) - row_price * kept.num_worth
        self.gain += (gain - self.gain) / (MEMORY + num_running)
        self.num_compared += 1
        self._num_in_vain += 1
        return True
