"""The terms of the default policy, replica by replica: one matrix for all of them.

    [term, candidate]    work, wait, transfer, charged, harm, balance, surplus, late, and the total
                         of all but work

Compiled where the library is there (`kernels/cpu/source/routing/cost_terms.cpp`), else by numpy,
with the same bits, so a choice does not depend on where it is made.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from baton.kernels.cpu.library import library_without_torch
from baton.kernels.routing.cost_terms_cpu import Least as LeastAsked
from baton.kernels.routing.cost_terms_cpu import Replicas
from baton.kernels.routing.cost_terms_cpu import cost_terms as compiled
from baton.router.cache.heat import Charge
from baton.router.explain.ranking import MAX_REPORTED
from baton.router.fairness.slo import (
    LITTLE,
    MOST_LATER_S,
    STEEPNESS,
    last_offset_s,
    late_cost_s,
    start_offset_s,
)
from baton.router.fairness.turns import STRETCH
from baton.router.policies.routing_policy import Costs, Least, PrefixHits
from baton.router.replicas.candidate import LATE_S
from baton.router.replicas.candidates import Candidates
from baton.router.table.columns import Numbers

TERMS = (
    "work_s",
    "wait_s",
    "transfer_s",
    "charged_s",
    "harm_s",
    "balance_s",
    "surplus_s",
    "late_s",
)
"""The first is what others are made of; the rest add up to the cost. Price, work and share
multiplied are what is charged."""
NUM_ROWS = len(TERMS) + 1


class Asked(NamedTuple):
    """One prompt, and what is the same for all replicas."""

    now: float
    num_tokens: int
    arrived_s: float
    latest_s: float
    """Nobody is due later after its arrival, but for the line and its priority (`turns.py`)."""
    later_s: float
    due_by_s: float
    """When its first token is due; infinite: it has no objective."""
    price: float
    coming_per_s: float
    """Half of the prompts that come to a replica and would have to wait there: on average they wait
    for half of the prompt that it computes."""
    balance_s: float
    """Charged to one that was sent twice the mean."""
    evenness: float
    """Charge per second of work of a candidate with twice the mean load; 0: no charge."""
    spare: float
    """Beyond so much more than the mean,"""
    haste: float
    """so many times as much is charged on top."""
    most_s: float
    """Most that is charged for a surplus while no prompts wait."""
    left: float
    """The fraction of the columns' recent work that still counts now."""
    future_s: float
    """Expected future work of a conversation that continues."""
    home: int
    """The row where this prompt's conversation is counted, which brings as much wherever it goes.
    -1: none."""
    mean_share_s: float
    """The mean of the candidates' recent and expected work, without this prompt."""
    num_waiting: float
    """Prompts in line, per replica."""


def costs(
    asked: Asked, charge: Charge | None, candidates: Candidates, held: PrefixHits, draw: int
) -> Costs:
    """`charge`: None, if all tokens are charged in full. `draw`: the prompt's, which settles
    equals."""
    found = library_without_torch()
    if found is None:
        terms = reference(asked, charge, candidates, held)
        return Costs(terms[-1], TERMS, terms[:-1])
    num = len(held.tokens)
    terms, reported = np.empty((NUM_ROWS, num)), np.empty((NUM_ROWS + 2, min(num, MAX_REPORTED)))
    columns = candidates.columns
    order = compiled(
        found,
        (
            *(asked.now, LATE_S, asked.num_tokens),
            *(asked.arrived_s, asked.latest_s, STRETCH, asked.later_s, asked.due_by_s),
            *(MOST_LATER_S, LITTLE, STEEPNESS),
            *asked[6:],
        ),
        () if charge is None else (*charge.ends, *charge.sums),
        Replicas(
            *(columns.rows, columns.line.addresses, candidates.places, num),
            *(held.usable, held.fetch_s, held.handoff_s),
        ),
        terms,
        LeastAsked(columns.draws_address, draw, reported),
    )
    return Costs(terms[-1], TERMS, terms[:-1], Least(order, reported))


def reference(
    asked: Asked, charge: Charge | None, candidates: Candidates, held: PrefixHits
) -> Numbers:
    """The definition."""
    terms = np.empty((len(TERMS) + 1, len(candidates)))
    work_s, wait_s, transfer_s, charged_s, harm_s, balance_s, surplus_s, late_s, total_s = terms
    work_s[:] = candidates.prefill_s(asked.num_tokens, held.usable)
    wait_s[:] = candidates.busy_s(asked.now)
    num_harmed = candidates.num_running
    allowed_s = asked.due_by_s - asked.arrived_s
    if candidates.has_lines:
        latest_s = np.maximum(asked.latest_s, candidates.line_s)
        offset_s = np.minimum(STRETCH * work_s, latest_s)
        if asked.due_by_s < math.inf:
            waited_s = asked.now - asked.arrived_s
            last_s = last_offset_s(offset_s, asked.latest_s, latest_s)
            offset_s = start_offset_s(allowed_s, waited_s, work_s, last_s)
        due_s = asked.arrived_s + offset_s + asked.later_s
        ahead_s, num_behind = candidates.ahead(due_s)
        wait_s += ahead_s
        num_harmed = num_harmed + num_behind
    transfer_s.fill(0.0)
    if held.fetch_s is not None:
        transfer_s[:] = held.fetch_s
    if held.handoff_s is not None:
        transfer_s += held.handoff_s
    np.multiply(work_s, asked.price, out=charged_s)
    if charge is not None:
        cached = np.minimum(held.usable, asked.num_tokens - 1)
        charged_s *= (charge.total - charge.before(cached)) / (asked.num_tokens - cached)
    np.multiply(num_harmed + asked.coming_per_s * work_s, work_s, out=harm_s)
    shares = _shares(asked, candidates)
    np.multiply(shares - 1.0, asked.balance_s, out=balance_s)
    surplus_s.fill(0.0)
    if asked.evenness:
        brings_s = work_s + asked.future_s
        over = brings_s / (2.0 * asked.mean_share_s) + shares - 1.0
        charged = np.maximum(over, 0.0) + np.maximum(over - asked.spare, 0.0) * asked.haste
        np.minimum(charged * asked.evenness * brings_s, asked.most_s, out=surplus_s)
    if asked.num_waiting:
        terms[-4:-2] /= 1.0 + asked.num_waiting
    over_s = np.maximum(asked.now + wait_s + transfer_s + work_s - asked.due_by_s, 0.0)
    late_s[:] = late_cost_s(over_s, allowed_s)
    np.add.reduce(terms[1:-1], out=total_s)
    return terms


def _shares(asked: Asked, candidates: Candidates) -> Numbers:
    """Recent and expected work of each candidate relative to the mean; ones if there is none."""
    if not asked.mean_share_s:
        return np.ones(len(candidates))
    num_others = candidates.num_ongoing - (candidates.rows == asked.home)
    brought_s: Numbers = candidates.recent_s * asked.left + num_others * asked.future_s
    return brought_s / asked.mean_share_s
