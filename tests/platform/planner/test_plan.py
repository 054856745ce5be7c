"""The planner's decisions: when pools grow, when they shrink, what is flipped, and why."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from itertools import pairwise
from math import pi, sin
from random import Random

import pytest

from baton.core.replicas import Role
from baton.core.step_times import StepTimes
from baton.platform.planner.capacity import FittedPasses, ReplicaModel
from baton.platform.planner.config import PlannerConfig
from baton.platform.planner.observation import Memory, Observation, PoolCount
from baton.platform.planner.plan import Decision, plan

TIMES = StepTimes(constant_s=0.02, token_s=5e-4, request_s=1e-4)
MODEL = ReplicaModel(
    passes=FittedPasses(TIMES), max_chunk=2048, num_kv_tokens=20_000, max_requests=8
)
"""Prompts of 1000 tokens take half a second; 8 requests decode at once, a token in 30 ms."""
MODELS = dict.fromkeys(Role, MODEL)
RULES = PlannerConfig(ttft_s=1.5, itl_s=0.1, cold_start_s=30.0, steady_s=120.0)
PERIOD_S = RULES.period_s


def observed(at_s: float, num_arrived: int, **changes: object) -> Observation:
    calm = Observation(
        at_s=at_s,
        lasted_s=PERIOD_S,
        num_arrived=num_arrived,
        prompt_tokens=1000 * num_arrived,
        squared_prompt_tokens=1e6 * num_arrived,
        num_ended=num_arrived,
        output_tokens=100 * num_arrived,
        num_waiting=0,
        waiting_tokens=0,
        oldest_wait_s=0.0,
        num_open=num_arrived // 2,
        prefill=PoolCount(1),
        decode=PoolCount(1),
    )
    return replace(calm, **changes)  # type: ignore[arg-type]


@dataclass
class Pools:
    """That do as they are told, each replica after its cold start."""

    rules: PlannerConfig = RULES
    counts: dict[Role, int] = field(default_factory=lambda: dict.fromkeys(Role, 1))
    decisions: list[Decision] = field(default_factory=list)
    memory: Memory = field(default_factory=Memory)

    def follow(self, rate_at: Callable[[float], float], lasts_s: float, seed: int = 0) -> None:
        random = Random(seed)
        for number in range(1, round(lasts_s / PERIOD_S) + 1):
            at_s = number * PERIOD_S
            arrived = sum(random.random() < rate_at(at_s) * PERIOD_S / 200 for _ in range(200))
            self.see(observed(at_s, arrived))

    def see(self, seen: Observation) -> Decision:
        seen = replace(
            seen,
            prefill=PoolCount(self.counts[Role.PREFILL]),
            decode=PoolCount(self.counts[Role.DECODE]),
        )
        decision, self.memory = plan(seen, MODELS, self.rules, self.memory)
        self.decisions.append(decision)
        self.counts = {role: decision.count(role) for role in Role}
        return decision

    def of(self, role: Role) -> list[int]:
        return [decision.count(role) for decision in self.decisions]


def reversals(counts: list[int]) -> int:
    grows = [later > earlier for earlier, later in pairwise(counts) if later != earlier]
    return sum(one is not other for one, other in pairwise(grows))


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize(
    "rate_at",
    [
        lambda at_s: 4.0 if 400 <= at_s < 800 else 1.0,
        lambda at_s: 1.0 + 3.0 * sin(pi * at_s / 1200) ** 2,
    ],
    ids=["steps", "sinusoid"],
)
def test_a_load_that_rises_and_falls_makes_each_pool_do_so_once(
    rate_at: Callable[[float], float], seed: int
) -> None:
    pools = Pools()

    pools.follow(rate_at, 1200.0, seed)

    for role in Role:
        counts = pools.of(role)
        assert reversals(counts) <= 1
        assert max(counts) > counts[0]
    prefill = pools.of(Role.PREFILL)
    assert prefill[-1] < max(prefill) <= 5
    for decision in pools.decisions[5:]:  # never less than what is asked for takes
        assert decision.prefill >= 0.5 * 0.75 * rate_at(decision.at_s - 15)


def test_a_ramp_is_seen_coming_and_a_step_is_no_ramp() -> None:
    ramp, step = Pools(), Pools()

    ramp.follow(lambda at_s: 0.5 + at_s / 100, 200.0)
    step.follow(lambda at_s: 1.0 if at_s < 100 else 4.0, 200.0)

    believed = [one.seen.per_minute for one in ramp.decisions if one.seen is not None]
    assert 0.2 < max(believed) < 2.5  # it rises by 0.6 a minute
    ahead = [one.seen for one in ramp.decisions if one.seen is not None]
    assert any(one.ahead.rate > one.now.rate * 1.05 for one in ahead)
    assert max(step.of(Role.PREFILL)) <= 4
    assert "rising" in " ".join(reason for one in ramp.decisions for reason in one.reasons)


def test_a_pool_shrinks_only_to_what_was_enough_for_long() -> None:
    pools = Pools(counts={Role.PREFILL: 4, Role.DECODE: 2})

    pools.follow(lambda at_s: 0.5, 150.0)

    prefill = pools.of(Role.PREFILL)
    assert prefill[int(RULES.steady_s / PERIOD_S) - 2] == 4
    assert prefill[-1] == 1
    assert "kept until fewer were enough" in pools.decisions[3].reasons[0]


def test_pools_go_to_zero_when_nobody_comes_and_back_when_somebody_waits() -> None:
    pools = Pools(rules=PlannerConfig(idle_s=60.0, cold_start_s=30.0))
    pools.see(observed(5.0, 2))
    for number in range(2, 20):
        pools.see(observed(5.0 * number, 0, num_open=0))
    gone = pools.of(Role.DECODE)
    came = pools.see(
        observed(100.0, 1, num_waiting=1, waiting_tokens=1000, oldest_wait_s=1.0, num_open=0)
    )

    assert gone[-1] == 0 and gone[8] == 1
    assert "no request for" in pools.decisions[-2].reasons[1]
    assert (came.prefill, came.decode) == (1, 1)


def test_what_one_role_can_spare_becomes_what_the_other_lacks() -> None:
    """Prompts become short and answers long: the load moves from prefill to decode."""
    rules = replace_rules(max_prefill=6, max_decode=6)
    pools = Pools(rules=rules, counts={Role.PREFILL: 4, Role.DECODE: 1})
    flips = []
    for number in range(1, 8):
        pools.see(observed(5.0 * number, 8))
    for number in range(8, 16):
        short = {"prompt_tokens": 400 * 10, "squared_prompt_tokens": 160_000.0 * 10}
        answers = {"output_tokens": 500 * 10}
        flips.append(pools.see(observed(5.0 * number, 10, **short, **answers)).flips)

    assert sum(flips) >= 1
    first = next(decision for decision in pools.decisions if decision.flips)
    assert first.prefill < 4 and first.decode > 1


def replace_rules(**changes: object) -> PlannerConfig:
    return PlannerConfig(**{"ttft_s": 1.5, "itl_s": 0.1, **changes})  # type: ignore[arg-type]


def test_who_waits_is_worth_a_replica_only_if_those_that_are_there_would_take_longer() -> None:
    few = {"num_waiting": 4, "waiting_tokens": 4000, "oldest_wait_s": 3.0}
    many = {"num_waiting": 80, "waiting_tokens": 80_000, "oldest_wait_s": 9.0}

    for waiting, wanted in ((few, 1), (many, 2)):
        decision, _ = plan(observed(5.0, 2, **waiting), MODELS, RULES, Memory())
        assert decision.prefill == wanted
    assert "80 wait, the oldest for 9.0 s" in decision.reasons[0]


def test_without_prefill_replicas_decode_replicas_grow_for_prompts_too() -> None:
    rules = replace_rules(min_prefill=0, max_prefill=0)
    none = {"prefill": PoolCount(0)}

    few, _ = plan(observed(5.0, 2, **none), MODELS, rules, Memory())
    many, _ = plan(observed(5.0, 20, **none), MODELS, rules, Memory())

    assert (few.prefill, many.prefill) == (0, 0)
    assert few.decode == 1 and many.decode >= 3


def test_a_role_that_has_measured_nothing_stays_as_it_is() -> None:
    decision, _ = plan(observed(5.0, 500), {}, RULES, Memory())

    assert (decision.prefill, decision.decode) == (1, 1)
    assert "have not measured" in decision.reasons[0]


def test_limits_are_kept_and_told() -> None:
    rules = replace_rules(max_prefill=2)
    decision, _ = plan(observed(5.0, 50), MODELS, rules, Memory())

    assert decision.prefill == 2
    assert "planner.max_prefill" in decision.reasons[0]
    with pytest.raises(ValueError, match="min_decode is more than"):
        PlannerConfig(min_decode=9)


def test_answers_that_have_not_ended_are_not_taken_for_short_ones() -> None:
    """Long ones came for half a minute, and none is over."""
    pools = Pools()

    for number in range(1, 7):
        pools.see(observed(number * PERIOD_S, 5, num_ended=0, output_tokens=0, num_open=5 * number))

    assert pools.of(Role.DECODE)[-1] >= 30 / MODEL.max_requests


def test_a_planner_that_has_watched_for_less_than_a_cold_start_flips_nobody() -> None:
    """Prefill lacks replicas, and so few answers have ended that decode seems to need but one."""
    pools = {"prefill": PoolCount(1), "decode": PoolCount(4)}
    hardly = {"num_ended": 1, "output_tokens": 20, "num_open": 1}
    seen = observed(5.0, 30, **pools, **hardly)

    decision, memory = plan(seen, MODELS, RULES, Memory())
    for number in range(2, 8):
        later, memory = plan(replace(seen, at_s=5.0 * number), MODELS, RULES, memory)

    assert decision.prefill > 1
    assert (decision.decode, decision.flips) == (4, 0)
    assert later.flips < 0


FULL = {"prefill": PoolCount(2), "decode": PoolCount(4), "num_open": 4 * MODEL.max_requests}
IN_LINE = {"num_waiting": 40, "waiting_tokens": 160_000, "oldest_wait_s": 50.0}


def test_a_line_for_room_to_decode_takes_no_decode_replica_away_and_adds_none_that_prefill() -> (
    None
):
    memory = Memory()
    for number in range(1, 12):
        seen = observed(5.0 * number, 5, **FULL, **IN_LINE, num_for_decode=40)
        decision, memory = plan(seen, MODELS, RULES, memory)
        assert decision.decode >= 4
        assert decision.prefill == 2

    for_prompts, _ = plan(replace(seen, num_for_decode=0), MODELS, RULES, Memory())
    assert for_prompts.prefill > 2


@pytest.mark.parametrize(
    ("changes", "wanted"),
    [
        ({"oldest_wait_s": 50.0}, 4),  # those that serve are soon through, as foreseen
        ({"oldest_wait_s": 70.0}, 5),  # they are not
        ({"oldest_wait_s": 70.0, "decode": PoolCount(4, starting=1)}, 5),  # one is on its way
        ({"output_tokens": 9000}, 7),  # a long line of long answers
    ],
    ids=["foreseen", "too-slow", "on-its-way", "long"],
)
def test_who_waits_for_room_to_decode_is_worth_as_many_as_give_it_to_them(
    changes: dict[str, object], wanted: int
) -> None:
    line = {**FULL, **IN_LINE, "num_for_decode": 40, "num_ended": 10, "output_tokens": 500}
    decision, _ = plan(observed(5.0, 5, **{**line, **changes}), MODELS, RULES, Memory())

    assert decision.decode == wanted


def test_no_more_than_give_all_who_wait_room_to_decode_are_added() -> None:
    """Their answers take longer than a cold start."""
    line = {"num_waiting": 6, "num_for_decode": 6, "waiting_tokens": 6000, "oldest_wait_s": 9.0}
    long = {"num_ended": 10, "output_tokens": 15_000}
    rules = replace_rules(cold_start_s=5.0)

    decision, _ = plan(observed(5.0, 1, **{**FULL, **line, **long}), MODELS, rules, Memory())

    assert decision.decode == 5  # work for 6


def test_who_is_open_keeps_replicas_that_the_answers_which_have_ended_do_not_ask_for() -> None:
    """The shortest end first: of one request a second one in five does, and four more are open."""
    memory, rules = Memory(), replace_rules(max_decode=16)
    decode = 8
    for number in range(1, 41):
        few = {"num_ended": 1, "output_tokens": 50, "num_open": min(4 * number, 100)}
        seen = observed(5.0 * number, 5, **few, prefill=PoolCount(1), decode=PoolCount(decode))
        decision, memory = plan(seen, MODELS, rules, memory)
        decode = decision.decode
        assert decode * MODEL.max_requests >= few["num_open"]
        if number == 14:
            grown = decode

    assert grown * MODEL.max_requests >= 4 * 14 + 20  # seen coming: a cold start takes 30 s
    assert "are open: " in decision.reasons[1]


def test_a_pool_stays_as_large_as_who_decodes_while_nobody_comes() -> None:
    """28 long prompts: the KV of five is as much as a replica holds."""
    memory = Memory()
    for number in range(1, 61):
        came = {"prompt_tokens": 8 * 3900, "squared_prompt_tokens": 8 * 3900.0**2}
        quiet = {"num_ended": 0, "output_tokens": 0, "num_open": 28, "decode": PoolCount(6)}
        seen = observed(5.0 * number, 8 if number < 4 else 0, **(came if number < 4 else {}))
        decision, memory = plan(replace(seen, **quiet), MODELS, RULES, memory)  # type: ignore[arg-type]

    assert decision.decode == 6
    assert decision.reasons[1].startswith("decode: 6 -> 6; nothing arrives; 28 are open: 6 hold 28")


def test_prefill_is_planned_for_what_caches_lack_and_decode_for_whole_prompts() -> None:
    cached = {"cached_tokens": 3000 * 10, "num_ended": 50, "output_tokens": 5000}
    whole = {"prompt_tokens": 4000 * 10, "squared_prompt_tokens": 1.6e8}

    [few, all_computed, no_cache] = [
        plan(observed(5.0, 10, **changes), MODELS, RULES, Memory())[0]
        for changes in (cached, whole, {})
    ]

    assert few.decode == all_computed.decode > no_cache.decode
    assert few.prefill == no_cache.prefill < all_computed.prefill


def test_of_prompts_that_wait_caches_hold_as_much_as_of_those_before_them() -> None:
    line = {"num_waiting": 80, "waiting_tokens": 80_000, "oldest_wait_s": 9.0}
    cached = {"prompt_tokens": 100, "squared_prompt_tokens": 5000.0, "cached_tokens": 1900}

    decision, _ = plan(observed(5.0, 2, **line, **cached), MODELS, RULES, Memory())

    assert decision.prefill == 1  # and two of them where nothing is cached
