"""Estimates what drafts would be worth while drafting is paused: some are made, none are verified.

    look      now and then makes a draft for one request, and keeps it
    compare   at the next look, counts how many of its tokens the model has drawn since. A new draft
              is made at once, for the next request: if all requests took turns before a comparison,
              many would have finished before theirs
    gain      running mean of tokens gained per draft, minus what verifying it would have cost

With this estimate a pause ends when drafts have become better, and goes on if a trial would gain
nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from baton.core.clock import Clock
from baton.engine.request.request import Request
from baton.engine.speculation.acceptance_rates import AcceptanceRates
from baton.engine.speculation.drafter import Draft, Drafter

SHARE, LEAST_SHARE = 0.001, 0.00025
"""Share of the time that looking may take: initially, and at least, after many drafts without
benefit."""
HALVING = 32
"""Number of drafts without benefit after which the share is halved."""
RESUME_GAIN = 0.4
"""Drafting is tried again with a gain above this, in tokens per draft."""
MIN_RUNNING = 4
"""Least number of running requests with which drafts are made: with fewer, one or two lucky drafts
would decide."""
MEMORY = 16
"""Number of drafts that the running mean covers, plus one for each running request."""


class _KeptDraft(NamedTuple):
    request: Request
    draft: Draft
    position: int
    num_to_verify: int
    """How many of the draft's first tokens would have been verified."""


class Watch:
    """Belongs to the engine's thread. For drafters whose drafts take next to no time."""

    def __init__(self, drafter: Drafter, acceptance: AcceptanceRates, max_tokens: int) -> None:
        self._drafter = drafter
        self._acceptance = acceptance
        self._max_tokens = max_tokens
        self._kept: _KeptDraft | None = None
        self._allowed_s = self._look_s = 0.0
        """Seconds that may be spent now, and seconds that a look takes on average."""
        self._turn = 0
        self._num_in_vain = 0
        """Number of drafts compared since they last ended a pause."""
        self.begin_pause()

    def begin_pause(self) -> None:
        """Forget what was compared in earlier pauses, which says nothing about this one."""
        self._kept = None
        self.gain = 0.0
        self.num_compared = 0

    def was_right(self) -> None:
        """Note that the pause has ended because of the gain."""
        self._num_in_vain = 0

    @property
    def is_due(self) -> bool:
        """Whether there is time enough for a look."""
        return self._allowed_s >= self._look_s

    @property
    def due_in_s(self) -> float:
        """Seconds of steps until a look is due, at most; 0 if one is due."""
        return max(0.0, self._look_s - self._allowed_s) / self._share

    def allow(self, seconds: float) -> None:
        """Take in that steps of `seconds` are over; a share of them may be spent on looking."""
        self._allowed_s = min(self._allowed_s + self._share * seconds, 2 * self._look_s)

    def look(self, running: Sequence[Request], row_price: float, clock: Clock) -> None:
        """Compare the kept draft, and make a new one unless more of it is still to come. `running`
        must not be empty. `row_price`: cost of verifying one draft token, in tokens."""
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
            probabilities = self._acceptance.of(request, draft.confidences)
            num_to_verify = sum([probability > row_price for probability in probabilities])
            self._kept = _KeptDraft(request, draft, len(request.tokens), num_to_verify)
        seconds = clock() - started_at
        self._look_s += (seconds - self._look_s) / 8 if self._look_s else seconds
        self._allowed_s -= seconds

    def forget(self, request: Request) -> None:
        if self._kept is not None and self._kept.request is request:
            self._kept = None

    @property
    def _share(self) -> float:
        return max(LEAST_SHARE, SHARE * HALVING / (HALVING + self._num_in_vain))

    def _is_over(self, kept: _KeptDraft, num_running: int, row_price: float) -> bool:
        """Whether the outcome of the draft is known; if so, it is taken into the mean."""
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
        gain = min(num_right, kept.num_to_verify) - row_price * kept.num_to_verify
        self.gain += (gain - self.gain) / (MEMORY + num_running)
        self.num_compared += 1
        self._num_in_vain += 1
        return True
