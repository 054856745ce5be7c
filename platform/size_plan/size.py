"""The answer: pools with their replicas, what is foreseen of them, and what they cost."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from baton.core.errors import InvalidConfig
from baton.platform.planner.capacity import Need
from baton.platform.size_plan.efficiency import Efficiency
from baton.platform.size_plan.pools import (
    Pool,
    Refusal,
    decode_pools,
    fitting_layouts,
    foreseen,
    mixed_pools,
    prefill_pools,
)
from baton.platform.size_plan.question import Question

HOUR_S = 3600.0
MILLION = 1e6
NUM_HALVINGS = 12


@dataclass(frozen=True, slots=True)
class Interval:
    """An expected value, with those of bad and good engines."""

    low: float
    expected: float
    high: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Forecast:
    """Forecast latency of the load on the chosen pools. Seconds are at the promised share, and of
    the median."""

    ttft_s: Interval
    itl_s: Interval
    ttft_p50_s: Interval
    itl_p50_s: Interval
    most_rate: Interval
    """Requests a second that keep the promise."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """Price of a million tokens, and of all accelerators for an hour."""

    per_hour: float
    per_million_in: float
    per_million_out: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Option:
    """One way to serve the load."""

    prefill: Pool | None
    """None: decode replicas compute prompts."""
    decode: Pool

    @property
    def num_accelerators(self) -> int:
        return self.decode.num_accelerators + (self.prefill.num_accelerators if self.prefill else 0)

    @property
    def is_kept(self) -> bool:
        return self.decode.is_kept and (self.prefill is None or self.prefill.is_kept)


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    question: Question
    chosen: Option
    other: Option | None
    """The way that was not chosen: disaggregated or not."""
    reason: str
    forecast: Forecast
    cost: Cost | None
    prefill_layouts: Sequence[Pool]
    """The best of each layout, the best layout first; so are the others."""
    decode_layouts: Sequence[Pool]
    refused: Sequence[Refusal]


def size(question: Question) -> Answer:
    """Raises InvalidConfig if the model fits into no layout."""
    layouts, refused = fitting_layouts(question)
    if not layouts:
        raise InvalidConfig(
            f"no layout on up to {question.max_ranks} {question.accelerator.name} has room: "
            f"{refused[-1].name}: {refused[-1].reason}; give more --max-ranks, another "
            "--accelerator or fewer bits with --precision"
        )
    prefill = prefill_pools(question, layouts)
    decode = decode_pools(question, layouts)
    apart = Option(prefill=prefill[0], decode=decode[0])
    together = Option(prefill=None, decode=mixed_pools(question, layouts)[0])
    chosen, reason = _choose(question, apart, together)
    return Answer(
        question=question,
        chosen=chosen,
        other=together if chosen is apart else apart,
        reason=reason,
        forecast=_forecast(question, chosen),
        cost=_cost(question, chosen),
        prefill_layouts=_one_a_layout(prefill),
        decode_layouts=_one_a_layout(decode),
        refused=refused,
    )


def _choose(question: Question, apart: Option, together: Option) -> tuple[Option, str]:
    names = {True: "prefill and decode apart", False: "prompts computed where they decode"}
    if question.is_disaggregated is not None:
        return (
            (apart, f"{names[True]}, as asked for")
            if question.is_disaggregated
            else (together, f"{names[False]}, as asked for")
        )
    if apart.is_kept != together.is_kept:
        kept = apart if apart.is_kept else together
        other = names[kept is not apart]
        return kept, f"{names[kept is apart]}: {other} do not keep the promise"
    if apart.num_accelerators != together.num_accelerators:
        fewer = min(apart, together, key=lambda option: option.num_accelerators)
        more = together if fewer is apart else apart
        return fewer, (
            f"{names[fewer is apart]}: {fewer.num_accelerators} accelerators instead of "
            f"{more.num_accelerators}"
        )
    rates = [
        _View(question, option, question.efficiencies[1]).most_rate()
        for option in (apart, together)
    ]
    return (apart if rates[0] > rates[1] else together), (
        f"{names[rates[0] > rates[1]]}: as many accelerators take {max(rates):.3g} requests a "
        f"second at most, not {min(rates):.3g}"
    )


def _one_a_layout(pools: Sequence[Pool]) -> Sequence[Pool]:
    best: dict[str, Pool] = {}
    for pool in pools:
        best.setdefault(pool.layout.name, pool)
    return tuple(best.values())


def _forecast(question: Question, option: Option) -> Forecast:
    views = [_View(question, option, one) for one in question.efficiencies]
    needs = [view.needs(question) for view in reversed(views)]  # the quickest first
    return Forecast(
        ttft_s=Interval(*(first.seconds for first, _ in needs)),
        itl_s=Interval(*(later.seconds for _, later in needs)),
        ttft_p50_s=Interval(*(first.typical_s for first, _ in needs)),
        itl_p50_s=Interval(*(later.typical_s for _, later in needs)),
        most_rate=Interval(*(view.most_rate() for view in views)),
    )


class _View:
    """The chosen replicas, were engines so efficient."""

    def __init__(self, question: Question, option: Option, efficiency: Efficiency) -> None:
        self._question = question
        pools = (option.prefill or option.decode, option.decode)
        self._pools = [(pool, pool.at(efficiency)) for pool in pools]

    def needs(self, question: Question) -> tuple[Need, Need]:
        """The needs of first tokens, and of later ones."""
        (prefill, of_prefill), (decode, of_decode) = self._pools
        first, _ = foreseen(prefill, of_prefill, question)
        _, later = foreseen(decode, of_decode, question)
        return first, later

    def most_rate(self) -> float:
        """Requests a second that these replicas take within the promise; 0 if not even few."""
        low, high = 0.0, self._question.load.rate
        while self._keeps(high):
            low, high = high, 2 * high
        for _ in range(NUM_HALVINGS):
            middle = (low + high) / 2
            low, high = (middle, high) if self._keeps(middle) else (low, middle)
        return low

    def _keeps(self, rate: float) -> bool:
        asked = replace(self._question, load=replace(self._question.load, rate=rate))
        return all(need.is_kept for need in self.needs(asked))


def _cost(question: Question, option: Option) -> Cost | None:
    """Prompts pay for those who compute them; of pools that are not apart, a share of the time."""
    if question.price is None:
        return None
    load = question.load
    per_hour = question.price * option.num_accelerators
    if option.prefill is not None:
        for_prompts = question.price * option.prefill.num_accelerators
    else:
        assert option.decode.first is not None
        for_prompts = per_hour * min(option.decode.first.busy, 1.0)
    hourly = HOUR_S * load.rate / MILLION
    return Cost(
        per_hour=per_hour,
        per_million_in=for_prompts / (hourly * load.prompt_tokens),
        per_million_out=(per_hour - for_prompts) / (hourly * load.output_tokens),
    )
