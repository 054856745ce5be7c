"""The interface of a policy: which of several replicas should compute a prompt.

    prompt, candidates, what each has of the prompt --costs--> one number a candidate

The smallest wins; among equals the prompt draws, so that they are filled evenly. A policy's unit is
its own: seconds, tokens, requests. A policy with `turns` binds late: its prompts wait in the
gateway until the candidate of their choice is about to be free (`prefill_queue.py`). The other
policies' prompts are sent at once.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple, Protocol

import numpy as np

from baton.kernels.cpu.library import library_without_torch
from baton.kernels.routing import choices_cpu as compiled
from baton.router.fairness.turns import Turns
from baton.router.prompt import Prompt
from baton.router.replicas.candidate import Candidate
from baton.router.replicas.candidates import Candidates
from baton.router.table.columns import Numbers


class PrefixHits(NamedTuple):
    """The tokens of one prompt that candidates have, or can fetch."""

    tokens: Numbers
    """Leading tokens, by candidate."""
    fetched: Numbers | None = None
    """Leading tokens, with those that each candidate can fetch for clearly less than computing
    them; None: no candidate can."""
    fetch_s: Numbers | None = None
    """Seconds to fetch those, by candidate."""
    handoff_s: Numbers | None = None
    """Seconds after the first token until the KV is where the request is decoded, by candidate;
    None: it is there."""

    @property
    def usable(self) -> Numbers:
        """Leading tokens that each need not compute."""
        return self.tokens if self.fetched is None else self.fetched

    def new_tokens(self, prompt: Prompt) -> Numbers:
        """Tokens that each has to compute: at least the last."""
        return np.maximum(prompt.num_tokens - self.tokens, 1)


class Least(NamedTuple):
    """The candidates with the least cost, as many as are reported, and their estimates."""

    order: Sequence[int]
    """Their places, the least first; equals are drawn."""
    reported: Numbers
    """[row, found]: the cost's terms and their sum, leading tokens that each need not compute, and
    seconds to fetch those of them that it lacks."""


class Costs(NamedTuple):
    """Costs of one prompt, by candidate; infinite where it must not go unless it may go nowhere
    else."""

    total: Numbers
    names: Sequence[str] = ()
    """Names of the cost's terms; none if it has no parts."""
    terms: Numbers | None = None
    """[name, candidate]"""
    least: Least | None = None
    """The cheapest, if they were found with the costs."""


class RoutingPolicy(Protocol):
    @property
    def turns(self) -> Turns | None:
        """The order of prompts in the gateway's line. None: prompts do not wait there."""

    def costs(self, prompt: Prompt, candidates: Candidates, held: PrefixHits, now: float) -> Costs:
        """One a candidate: the least wins."""

    def placed(self, prompt: Prompt, candidate: Candidate) -> None:
        """Note where `prompt` went."""


class RoutesAtOnce:
    """Base class of policies that send prompts at once, and keep no state about placements."""

    turns: Turns | None = None

    def placed(self, prompt: Prompt, candidate: Candidate) -> None:
        """Forget it."""


def cheapest(prompt: Prompt, candidates: Candidates, costs: Costs) -> int:
    """The place of the candidate that wins. Raises ValueError if there is none."""
    return least(prompt, candidates, costs, 1)[0]


def least(prompt: Prompt, candidates: Candidates, costs: Costs, num: int) -> Sequence[int]:
    """The places of the `num` that cost least, the winner first; of all, if they are fewer.
    Raises ValueError if there is none."""
    if costs.least is not None and num <= len(costs.least.order):
        return costs.least.order[:num]
    return least_by(prompt.draw, candidates, costs.total, num)


def least_by(draw: int, candidates: Candidates, total: Numbers, num: int) -> Sequence[int]:
    """The places of the `num` candidates whose `total` is least; equals are drawn by `draw`. Raises
    ValueError if there is none."""
    if not len(total):
        raise ValueError("nobody to choose from")
    found = library_without_torch()
    if found is None:
        return _least(draw, candidates, total, num)
    draws, places = candidates.columns.draws_address, candidates.places
    return compiled.least(found, np.ascontiguousarray(total, float), draws, places, draw, num)


def _least(draw: int, candidates: Candidates, total: Numbers, num: int) -> Sequence[int]:
    """The definition."""
    comparable = np.where(np.isnan(total), math.inf, total)
    order: list[int] = np.lexsort((candidates.drawn_by(draw), comparable))[:num].tolist()
    return order
