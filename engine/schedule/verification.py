"""Verifies draft tokens: a draft token is kept if it equals the token that the model draws.

    known ... c | drafted  x  y  z          the pass computes c, x, y, z
    drawn after each       x  y  w  v       the draft's third token is not what is drawn
    the request gets       x  y  w          as if it had been three passes

The noise of a draw is a function of seed, choice and position, so the tokens drawn after correct
drafts are those that would have been drawn without drafts. Outputs are therefore the same as
without speculation, token by token, and no other acceptance rule is needed.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from baton.engine.request.request import Request
from baton.engine.sampling.sampling_row import SamplingRow
from baton.engine.schedule.drafted_chunks import ScheduledChunk


class Run(NamedTuple):
    """One request's rows of logits in a pass: one after its known tokens, and one after each of its
    draft tokens."""

    request: Request
    drafted: Sequence[int]
    """Draft tokens up to the first that the request's grammar does not allow."""
    rows: Sequence[SamplingRow]
    logits_rows: range
    """Indices of `rows` in the pass's logits."""


def runs_of(chunks: Sequence[ScheduledChunk]) -> list[Run]:
    """The runs of those chunks whose request gets a token in this pass, in order."""
    runs: list[Run] = []
    first = 0
    for request, _, drafted in chunks:
        if request.awaits_token:
            rows = request.row.rows_after(drafted)
            logits_rows = range(first, first + len(rows))
            runs.append(Run(request, drafted[: len(rows) - 1], rows, logits_rows))
            first += 1 + len(drafted)
    return runs


def verified(
    drafted: Sequence[int], drawn: Sequence[int], are_finite: Sequence[bool]
) -> tuple[int, ...]:
    """The tokens a request gets: its accepted draft tokens, then the token drawn after them.

    `drawn` and `are_finite` have one entry more than `drafted`. Tokens from the first row with
    non-finite logits on are left out; if that is not the first row, the next pass computes it again
    and reports the error.
    """
    num_right = 0
    while num_right < len(drafted) and drafted[num_right] == drawn[num_right]:
        num_right += 1
    num_given = num_right + 1
    if not all(are_finite):
        num_given = min(num_given, list(are_finite).index(False))
    return tuple(drawn[:num_given])
