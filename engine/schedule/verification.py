"""Verifies draft tokens: those that equal what the model itself draws are kept.

    known ... c | drafted  x  y  z          the pass computes c, x, y, z
    drawn after each       x  y  w  v       the draft's third token is not what is drawn
    the request gets       x  y  w          as if it had been three passes

The noise of a draw is a function of seed, choice and position, so the tokens drawn after correct
drafts are those that would have been drawn without drafts. Keeping a draft token only if it equals
the drawn one therefore loses nothing, and no other acceptance rule is needed.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from baton.engine.request.request import Request
from baton.engine.sampling.sampling_row import SamplingRow
from baton.engine.schedule.drafted_chunks import ScheduledChunk


class Run(NamedTuple):
    """One request's rows of a pass: behind what it knows, and behind each of its drafts."""

    request: Request
    drafted: Sequence[int]
    """Drafted tokens, as far as the request's grammar allows them."""
    rows: Sequence[SamplingRow]
    logits_rows: range
    """Rows of the logits that `rows` have."""


def runs_of(chunks: Sequence[ScheduledChunk]) -> list[Run]:
    """The runs of chunks that are to get a token, in order."""
    runs: list[Run] = []
    first = 0
    for request, _, drafted in chunks:
        if request.awaits_token:
            rows = request.row.behind(drafted)
            logits_rows = range(first, first + len(rows))
            runs.append(Run(request, drafted[: len(rows) - 1], rows, logits_rows))
            first += 1 + len(drafted)
    return runs


def verified(
    drafted: Sequence[int], drawn: Sequence[int], are_finite: Sequence[bool]
) -> tuple[int, ...]:
    """The tokens a request gets: drafts that were drawn, then one more that was drawn.

    Where logits are not finite nothing was drawn; the pass after this finds out.
    """
    num_right = 0
    while num_right < len(drafted) and drafted[num_right] == drawn[num_right]:
        num_right += 1
    num_given = num_right + 1
    if not all(are_finite):
        num_given = min(num_given, list(are_finite).index(False))
    return tuple(drawn[:num_given])
