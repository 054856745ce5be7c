"""The simulator against what is known otherwise: queueing theory, hand-made times, conservation."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace
from statistics import fmean

import msgspec
import pytest

from baton.core.errors import InvalidConfig
from baton.platform.simulator.block_names import BlockNames
from baton.platform.simulator.experiment import Case, Experiment, play, play_all
from baton.platform.simulator.limit import play_limit
from baton.platform.simulator.outcome import Outcome
from baton.platform.simulator.prefill_pool import PrefillPool
from baton.platform.simulator.report import tree
from baton.platform.simulator.setup import Setup, SloClass
from baton.platform.traces.trace import Trace, TraceRequest
from baton.router.policies.by_name import POLICIES, policy

SETUP = Setup(num_replicas=1, num_blocks=100, block_size=10, tokens_per_s=100.0)


def trace(requests: Sequence[TraceRequest], block_size: int | None = 10) -> Trace:
    return Trace(name="made up", requests=tuple(requests), block_size=block_size)


def poisson(num_requests: int, per_s: float, *, lengths: Sequence[int] = (100,)) -> Trace:
    random_, at_s, requests = random.Random(1), 0.0, []
    for _ in range(num_requests):
        at_s += random_.expovariate(per_s)
        length = random_.choice(lengths)
        requests.append(TraceRequest(arrival_s=at_s, input_length=length, output_length=1))
    return trace(requests)


def conversations(num_requests: int) -> Trace:
    """Prompts of one to six blocks of 10 tokens and a rest, that begin alike by chance."""
    random_, requests = random.Random(2), []
    for number in range(num_requests):
        ids = [random_.randrange(3)]
        while random_.random() < 0.7 and len(ids) < 6:
            ids.append(ids[-1] * 3 + random_.randrange(3) + 3)
        requests.append(
            TraceRequest(
                arrival_s=number * 0.15,
                input_length=len(ids) * 10 + random_.randrange(1, 10),
                output_length=5,
                hash_ids=tuple(ids),
            )
        )
    return trace(requests)


def played(trace: Trace, setup: Setup, name: str = "round-robin") -> Outcome:
    return PrefillPool(trace, setup, policy(name), seed=0).play()


def test_one_replica_with_equal_prompts_is_the_m_d_1_queue() -> None:
    """Half busy with work of 1 s, prompts wait rho s / (2 (1 - rho)) = 0.5 s.

    Of 3,000 waits in a row, the mean's standard error is 0.04 s; three of them are allowed.
    """
    outcome = played(poisson(3000, 0.5), SETUP)

    waits = [one.ttft_s - 1.0 for one in outcome.served]
    assert fmean(waits) == pytest.approx(0.5, abs=0.12)


@pytest.mark.parametrize("name", ["round-robin", "least-tokens"])
def test_prompts_of_one_replica_wait_as_lindley_says(name: str) -> None:
    """wait' = max(wait + work - gap, 0)"""
    load = poisson(300, 1.2, lengths=(1, 40, 90, 200))
    outcome = played(load, SETUP, name)

    free_s, expected = 0.0, []
    for request in load.requests:
        assert request.arrival_s is not None
        free_s = max(free_s, request.arrival_s) + request.input_length / 100.0
        expected.append(free_s - request.arrival_s)
    assert [one.ttft_s for one in outcome.served] == pytest.approx(expected)


@pytest.mark.parametrize("name", POLICIES)
def test_each_request_is_served_once_and_no_policy_beats_the_limit(name: str) -> None:
    load, setup = conversations(150), replace(SETUP, num_replicas=4, num_blocks=12)

    outcome = played(load, setup, name)

    lengths = sorted(one.num_tokens for one in outcome.served)
    assert lengths == sorted(request.input_length for request in load.requests)
    computed = sum(one.num_tokens - one.num_cached for one in outcome.served)
    assert sum(outcome.busy_s) == pytest.approx(computed / setup.tokens_per_s)
    assert all(
        one.ttft_s >= (one.num_tokens - one.num_cached) / 100 - 1e-9 for one in outcome.served
    )
    limit = play_limit(load, setup, seed=0)
    assert limit.figures(1.0).mean_s <= outcome.figures(1.0).mean_s


def test_what_comes_when_enough_wait_is_rejected_and_its_session_goes_on() -> None:
    """Work of 1 s each. b comes while a is computed and waits; c comes then, and is turned away.

    c's next turn comes 2 s after that, at 2.2, when nobody waits.
    """
    gaps = (("a", 0.0), ("b", 0.1), ("c", 0.2), ("c", 2.0))
    turns = [
        TraceRequest(session=session, gap_s=gap_s, input_length=100, output_length=1)
        for session, gap_s in gaps
    ]

    outcome = played(trace(turns), replace(SETUP, max_waiting=1), "cost")

    assert outcome.rejected == 1
    assert [one.ttft_s for one in outcome.served] == pytest.approx([1.0, 1.9, 1.0])
    figures = outcome.figures(slo_ttft_s=1.5)
    assert figures.num_requests == 4 and figures.goodput == 2 / 4


def test_under_overload_the_router_keeps_objectives_that_it_would_miss_if_it_knew_none() -> None:
    """A fifth more is asked for than can be computed; half may take two seconds, half a hundred."""
    classes = [SloClass.read("chat=2:0.5"), SloClass.read("batch=100:0.5")]
    setup = replace(SETUP, num_replicas=2, slo_classes=classes)
    load = poisson(200, 2.4)

    with_, without = (
        played(load, setup, name).figures(slo_ttft_s=1.0).goodput_by_class
        for name in ("cost", "cost-without-slos")
    )

    assert with_["batch"] >= 0.95 and with_["chat"] >= 2 * without["chat"]


@pytest.mark.parametrize("name", ["cost", "least-tokens"])
def test_where_nobody_may_wait_a_prompt_is_served_if_a_replica_is_idle(name: str) -> None:
    """Work of 1 s each; the second comes while the first is computed, the third after it."""
    requests = [
        TraceRequest(arrival_s=at_s, input_length=100, output_length=1) for at_s in (0.0, 0.5, 1.5)
    ]

    outcome = played(trace(requests), replace(SETUP, max_waiting=0), name)

    assert outcome.rejected == 1
    assert [one.place for one in outcome.served] == [0, 2]


@pytest.mark.parametrize(
    ("block_size", "shared", "own"),
    [(10, 2, 1), (20, 1, 1), (5, 4, 2), (40, 0, 1)],
)
def test_blocks_are_named_alike_where_prompts_begin_alike(
    block_size: int, shared: int, own: int
) -> None:
    """Two prompts of 28 tokens that have their first 20 in common, in blocks of other sizes."""
    prompts = [
        TraceRequest(arrival_s=0.0, input_length=28, output_length=1, hash_ids=ids)
        for ids in ((1, 2, 3), (1, 2, 4))
    ]
    names = BlockNames(trace(prompts), block_size, seed=0)

    one, other = (names.of(prompt) for prompt in prompts)

    assert len(one) == len(other) == shared + own == len(set(one))
    assert one[:shared] == other[:shared] and not set(one[shared:]) & set(other[shared:])
    assert BlockNames(trace(prompts), block_size, seed=1).of(prompts[0]) != one


def test_a_block_size_that_does_not_fit_the_hash_ids_is_refused() -> None:
    with pytest.raises(InvalidConfig, match="stand for 10 tokens"):
        BlockNames(conversations(1), 15, seed=0)


def test_the_same_seed_gives_the_same_bytes() -> None:
    experiment = Experiment(
        traces=[conversations(60)],
        policies=["cost", "random"],
        loads=[0.8],
        num_seeds=2,
        setup=replace(SETUP, num_replicas=3),
    )

    once, again = (
        msgspec.json.encode(tree(experiment, list(play_all(experiment.cases(), 1, play))))
        for _ in range(2)
    )

    assert once == again
    rows = msgspec.json.decode(once)["rows"]
    assert rows[2]["mean_s"] != rows[3]["mean_s"]  # of random, with another seed


def test_a_load_is_what_prompts_would_take_if_nothing_were_cached() -> None:
    load = conversations(60)
    experiment = Experiment(
        traces=[load], policies=[], loads=[0.8], num_seeds=1, setup=replace(SETUP, num_replicas=3)
    )
    (limit,) = experiment.cases()
    assert isinstance(limit, Case)

    tokens = sum(request.input_length for request in load.requests)
    duration_s = 59 * 0.15
    assert play(limit).tokens_per_s == pytest.approx(tokens / (duration_s * 3 * 0.8))
