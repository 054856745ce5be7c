"""What each policy costs, by hand: published formulas on one picture of three replicas."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import inf, nan

import numpy as np
import pytest

from baton.router.cache.heat import Heat
from baton.router.defaults import DEFAULT_POLICY, POLICY_NAMES
from baton.router.fairness.turns import Turns
from baton.router.policies.by_name import POLICIES, policy
from baton.router.policies.cost import BASE_PRICE, Cost, CostWeights
from baton.router.policies.routing_policy import Costs, PrefixHits, cheapest
from baton.router.policies.sticky_until_saturated import FAR
from baton.router.prefill_queue import PrefillQueue
from baton.router.prompt import Prompt
from baton.router.replicas.candidate import Candidate
from baton.router.replicas.candidates import CandidateTable
from baton.router.sessions import Sessions
from baton.router.speeds.speed import ConstantRate

BLOCK_SIZE = 100


def prompt(number: int, num_tokens: int, names: str = "", *, arrived_s: float = 0.0) -> Prompt:
    """A block for each letter of `names`."""
    return Prompt(
        number=number,
        num_tokens=num_tokens,
        arrived_s=arrived_s,
        names=tuple(letter.encode() * 16 for letter in names),
        num_blocks=num_tokens // BLOCK_SIZE,
        block_size=BLOCK_SIZE,
        session=names[:1],
        draw=number,
    )


def replicas() -> CandidateTable:
    """a computes 500 and 300 tokens, b computes 600, c nothing."""
    a, b, c = (
        Candidate(name, ConstantRate(tokens_per_s=100.0), credit_tokens=10_000) for name in "abc"
    )
    for candidate, number, num_tokens in ((a, 1, 500), (a, 2, 300), (b, 3, 600)):
        candidate.book(prompt(number, num_tokens), 0, now=0.0)
    return CandidateTable((a, b, c))


ASKS = prompt(9, 1000, "uvwxyz")
HELD = PrefixHits(np.array([800.0, 0, 200]))


@pytest.mark.parametrize(
    ("name", "costs"),
    [
        ("random", [0, 0, 0]),
        ("least-requests", [2, 1, 0]),
        ("least-tokens", [8 - 2, 6 - 2, 0]),
        ("longest-match", [200 * 2**20 + 2, 1000 * 2**20 + 1, 800 * 2**20]),
        ("sticky-until-saturated", [2, 1 + FAR, 0 + FAR]),
        ("additive", [(800 + 200) / 100 + 18, (600 + 1000) / 100 + 16, 800 / 100 + 10]),
        ("new-tokens-times-batch", [(800 + 200) * 3, (600 + 1000) * 2, 800 * 1]),
        ("session-sticky", [8 - 2, 6 - 2, 0]),
    ],
)
def test_a_policy_costs_what_its_formula_says(name: str, costs: Sequence[float]) -> None:
    assert list(policy(name).costs(ASKS, replicas().all, HELD, 2.0).total) == costs


def test_the_default_costs_wait_and_work_before_it_has_learnt_anything() -> None:
    """a: 6 s until it is free, 2 s of work; b: 4 s and 10 s; c: 8 s of work alone."""
    cost = Cost(CostWeights(balance=0.0))

    costs = cost.costs(ASKS, replicas().all, HELD, 2.0)

    assert costs.terms is not None
    terms = dict(zip(costs.names, costs.terms, strict=True))
    assert (list(terms["wait_s"]), list(terms["work_s"])) == ([6, 4, 0], [2, 10, 8])
    assert costs.total == pytest.approx(
        np.array([6 + BASE_PRICE * 2, 4 + BASE_PRICE * 10, BASE_PRICE * 8])
    )


def test_a_longer_line_makes_a_cached_prefix_worth_more() -> None:
    """By 3 of its work for each prompt a replica in line; who is overtaken waits for all of it."""
    cost, full = Cost(), replicas()
    for candidate in full.all:
        candidate.credit_tokens = 0
    line = PrefillQueue(cost, lambda prompts, _: [0] * len(prompts))
    nothing = PrefixHits(np.zeros(2))
    for number in range(10, 13):
        two = full.at(np.array([0, 1]))
        line.arrive(prompt(number, 100, arrived_s=100.0), two, nothing, 1.0)

    costs = cost.costs(ASKS, full.all, HELD, 2.0)

    assert costs.terms is not None
    terms = dict(zip(costs.names, costs.terms, strict=True))

    assert len(line) == 3
    assert terms["charged_s"] / terms["work_s"] == pytest.approx(np.full(3, BASE_PRICE + 3 * 1.0))
    num_waiting = [len(candidate.waiting) for candidate in full.all]
    assert list(terms["harm_s"]) == list(num_waiting * terms["work_s"])


def test_who_loses_little_by_it_leaves_a_replica_that_was_sent_too_much() -> None:
    """a was sent three times what b was; at b it takes 2 or 10 times the work it takes at a."""
    candidates = CandidateTable(Candidate(n, ConstantRate(tokens_per_s=100.0)) for n in "ab").all
    cost = Cost(CostWeights(balance=0.0))

    def chosen(num_held: int, now: float = 0.0) -> int:
        held = PrefixHits(np.array([num_held, 0.0]))
        return cheapest(ASKS, candidates, cost.costs(ASKS, candidates, held, now))

    for number, place in enumerate((0, 0, 0, 1)):
        sent = prompt(number, 40_000, names="abcd"[number])
        candidates[place].book(sent, 0, now=0.0)
        candidates[place].finished(sent, now=0.0)
    few = [chosen(num_held) for num_held in (500, 900)]
    for number in range(10):
        cost.placed(prompt(number, 100, names="abcdefghij"[number]), candidates[0])

    assert few == [0, 0]  # nobody has begun here that could be spread
    assert [chosen(num_held) for num_held in (500, 900)] == [1, 0]
    assert [chosen(900, now) for now in (10.0, 400.0)] == [0, 1]  # nobody begins any more


def test_a_conversation_leaves_for_all_that_it_will_bring() -> None:
    """Both were sent as much, but four conversations go on at a, and none at b, where a turn takes
    ten times the work."""

    def chosen(num_turns: int) -> int:
        table = CandidateTable(Candidate(n, ConstantRate(tokens_per_s=100.0)) for n in "ab")
        candidates, cost = table.all, Cost(CostWeights(balance=0.0))
        for number in range(10):
            cost.placed(prompt(number, 100, names="abcdefghij"[number]), candidates[0])
        for turn in range(num_turns):
            for name in "wxyz":
                sent = replace(prompt(0, 2400 // num_turns, name), is_first_turn=not turn)
                candidates[0].book(sent, 0, now=0.0)
                candidates[0].finished(sent, now=0.0)
        candidates[1].book(prompt(1, 9600), 0, now=0.0)
        candidates[1].finished(prompt(1, 9600), now=0.0)
        asks = replace(ASKS, session="w", is_first_turn=False)
        held = PrefixHits(np.array([900.0, 0.0]))
        return cheapest(asks, candidates, cost.costs(asks, candidates, held, 0.0))

    assert chosen(1) == 0  # nothing says yet that they bring more than this turn
    assert chosen(4) == 1


def test_a_conversation_that_is_dear_to_move_stays_however_much_its_replica_has() -> None:
    """a was sent three times what b was, by prompts that took 2 s each; at b this one takes 3 s, or
    thirty. Twenty conversations began, one each tenth of a second."""

    def chosen(num_tokens: int, now: float) -> int:
        table = CandidateTable(Candidate(n, ConstantRate(tokens_per_s=100.0)) for n in "ab")
        candidates, cost = table.all, Cost(CostWeights(balance=0.0))
        for number in range(400):
            name, at = str(number % 20), int(number % 4 == 3)  # of twenty turns each
            sent = replace(prompt(number, 200, arrived_s=number / 10), session=name)
            sent = replace(sent, is_first_turn=number < 20)
            cost.placed(sent, candidates[at])
            candidates[at].book(sent, 0, now=0.0)
            candidates[at].finished(sent, now=0.0)
        asks = replace(prompt(999, num_tokens), session="0", is_first_turn=False)
        held = PrefixHits(np.array([num_tokens - 20.0, 0.0]))
        return cheapest(asks, candidates, cost.costs(asks, candidates, held, now))

    assert chosen(300, now=5.0) == 1
    assert chosen(3000, now=5.0) == 0
    assert chosen(3000, now=1.9) == 1  # one has just begun


def test_conversations_that_begin_before_any_came_back_are_spread() -> None:
    """All begin with what only one replica has, which is idle again before the next comes."""
    table = CandidateTable(Candidate(n, ConstantRate(tokens_per_s=100.0)) for n in "abcd")
    cost, every = Cost(), table.all
    for number in range(12):
        begins = replace(prompt(number, 100), session=f"{number}", arrived_s=float(number))
        held = PrefixHits(np.array([60.0, 0.0, 0.0, 0.0]))
        place = cheapest(begins, every, cost.costs(begins, every, held, float(number)))
        cost.placed(begins, every[place])
        every[place].book(begins, int(held.tokens[place]), float(number))
        every[place].finished(begins, float(number) + 0.9)

    assert max(every.num_ongoing) <= 5


def test_a_conversation_stays_where_it_was_and_prefixes_have_their_replicas() -> None:
    table = replicas()
    every = table.all
    sticky = policy("session-sticky")
    sticky.placed(ASKS, every[0])
    assert list(sticky.costs(ASKS, every, HELD, 2.0).total) == [6, inf, inf]
    others = PrefixHits(np.array([0.0, 200]))
    assert inf not in sticky.costs(ASKS, table.at(np.array([1, 2])), others, 2.0).total

    of_two = policy("two-choice").costs(ASKS, every, HELD, 2.0).total
    assert 1 <= sum(cost != inf for cost in of_two) <= 2

    hashed = policy("prefix-hash")
    place = cheapest(ASKS, every, hashed.costs(ASKS, every, HELD, 2.0))
    alike = prompt(10, 700, "uvx")
    assert cheapest(alike, every, hashed.costs(alike, every, HELD, 9.0)) == place
    fewer = table.at(np.array([place, (place + 2) % 3]))  # one of the others is gone
    assert cheapest(ASKS, fewer, hashed.costs(ASKS, fewer, HELD, 2.0)) == 0


def test_a_configuration_may_name_every_policy() -> None:
    assert tuple(POLICIES) == POLICY_NAMES and DEFAULT_POLICY in POLICIES


@pytest.mark.parametrize("name", POLICIES)
def test_equals_are_filled_evenly(name: str) -> None:
    chosen, nothing = policy(name), PrefixHits(np.zeros(3))
    rate = ConstantRate(tokens_per_s=100.0)
    candidates = CandidateTable(Candidate(name, rate) for name in "abc").all
    counts = [0, 0, 0]
    for number in range(300):
        one = prompt(number, 100)
        one = replace(one, draw=number * 0x9E3779B97F4A7C15)
        place = cheapest(one, candidates, chosen.costs(one, candidates, nothing, 0.0))
        chosen.placed(one, candidates[place])
        counts[place] += 1

    assert min(counts) > 60


def test_what_conversations_begin_with_is_charged_to_all_of_them() -> None:
    """Four replicas; three conversations begin with u v: two others share it, at 1 / (1 + 2/4)."""
    heat = Heat()
    for number, names in enumerate(("uvwx", "uvab", "uvcd")):
        heat.observe(prompt(number, 450, names), 0.0)

    charge = heat.charge(prompt(5, 450, "uvwx"), 4, 0.0)

    assert charge.before(np.array(200.0)) == pytest.approx(200 / 1.5)
    assert charge.before(np.array(450.0)) == pytest.approx(200 / 1.5 + 250)
    later = heat.charge(prompt(5, 450, "uvwx"), 4, 600.0)  # half as many, half a life later
    assert later.before(np.array(200.0)) == pytest.approx(200 / (1 + 0.5 / 4))
    heat.observe(prompt(6, 450, "uv"), 600.0)
    again = heat.charge(prompt(5, 450, "uvwx"), 4, 600.0)
    assert again.before(np.array(200.0)) == pytest.approx(200 / (1 + 1.5 / 4))
    assert heat.charge(prompt(5, 450, "uvwx"), 0, 0.0).before(np.array(450.0)) == 450


def test_a_session_is_known_by_the_tail_that_its_next_turn_continues() -> None:
    sessions = Sessions()
    a, b, c, d, x = (letter.encode() * 16 for letter in "abcdx")

    first, begins = sessions.of([a, b])
    assert begins and sessions.of([a, b, c]) == (first, False)
    branched, begins = sessions.of([a, b, x])  # b is no tail any more
    assert begins and branched != first
    assert sessions.of([a, b, c, d]) == (first, False)
    assert sessions.of([]) == ("", True)


def test_a_session_that_has_a_name_keeps_it_where_a_turn_comes_without() -> None:
    a, b, c, d, x = (bytes([letter]) * 16 for letter in b"abcdx")
    sessions = Sessions()

    assert sessions.of([a, b], "mine") == ("mine", True)
    assert sessions.of([a, b, c]) == ("mine", False)
    assert sessions.of([a], "yours") == ("yours", True)
    assert sessions.of([d], "yours") == ("yours", False)
    other, begins = sessions.of([a, x])  # what it began with is superseded
    assert begins and other not in ("mine", "yours")


def test_a_cost_that_is_no_number_loses_and_a_prompt_of_no_length_is_not_typical() -> None:
    candidates, turns = replicas().all, Turns()
    turns.observe(2.0)

    turns.observe(nan)

    assert turns.typical_s == 2.0
    assert cheapest(ASKS, candidates, Costs(np.array([nan, 2.0, 1.0]))) == 2
    assert cheapest(ASKS, candidates, Costs(np.array([nan] * 3))) in range(3)
