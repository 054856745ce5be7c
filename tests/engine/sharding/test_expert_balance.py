"""Where experts are put: nobody is forgotten, and ranks get like loads."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest
from bench.ranks.expert_balance import SHAPES, Shape, loads_of
from hypothesis import given
from hypothesis import strategies as st

from baton.core.errors import InvalidConfig
from baton.engine.mesh.expert_map import ExpertMap, spread
from baton.engine.sharding.expert_balance import (
    MIN_GAIN,
    Machines,
    balanced,
    busiest,
    by_machine,
    like,
    with_copies,
    without_copies,
)

NO_MACHINES = Machines()


@st.composite
def problems(draw: st.DrawFn) -> tuple[list[int], ExpertMap]:
    """Loads, and where experts are: spread, or however they came to be."""
    num_experts, num_ranks = draw(st.integers(1, 12)), draw(st.integers(1, 6))
    most = num_experts - -(-num_experts // num_ranks)
    now = spread(num_experts, num_ranks, draw(st.integers(0, most)))
    if draw(st.booleans()):
        now = replace(now, experts=tuple(draw(st.permutations(now.experts))))
    loads = st.lists(st.integers(0, 1000), min_size=num_experts, max_size=num_experts)
    return draw(loads), now


@given(problems())
def test_each_expert_has_a_slot_and_each_rank_as_many(problem: tuple[list[int], ExpertMap]) -> None:
    loads, now = problem

    found = balanced(loads, now, NO_MACHINES)

    assert set(found.experts) == set(range(len(loads)))
    assert len(found.experts) == len(now.experts)
    assert sum(found.loads_of_ranks(loads)) == pytest.approx(sum(loads))


@given(problems())
def test_it_is_never_worse_than_it_was_nor_than_without_copies(
    problem: tuple[list[int], ExpertMap],
) -> None:
    loads, now = problem
    mean = sum(loads) / now.num_ranks

    found = busiest(balanced(loads, now, NO_MACHINES), loads)

    assert found <= busiest(now, loads)
    plain = without_copies(loads, range(len(loads)), now.num_ranks, now.slots_per_rank)
    if all(plain):
        assert found <= busiest(like(now, plain, now.num_ranks), loads) + MIN_GAIN * mean + 1e-6


@given(problems())
def test_what_is_balanced_stays_as_it_is(problem: tuple[list[int], ExpertMap]) -> None:
    loads, now = problem
    once = balanced(loads, now, NO_MACHINES)

    assert balanced(loads, once, NO_MACHINES) is once


def test_experts_that_stay_on_a_rank_keep_their_slot() -> None:
    now = ExpertMap((0, 1, 2, 3, 4, 5), 6, 2)

    assert like(now, [[3, 5, 0], [1, 4, 2]], 2).experts == (4, 1, 2, 3, 0, 5)


@given(st.lists(st.integers(0, 1000), min_size=24, max_size=24))
def test_groups_stay_together_on_a_machine(loads: list[int]) -> None:
    machines = Machines(num_machines=2, num_groups=4)

    found = by_machine(loads, machines)

    assert sorted(expert for own in found for expert in own) == list(range(24))
    for own in found:
        assert set(Counter(expert // 6 for expert in own).values()) == {6}
        ranks = with_copies(loads, own, 3, 5)
        assert {expert for rank in ranks for expert in rank} == set(own)
        assert [len(rank) for rank in ranks] == [5, 5, 5]


def test_a_map_of_several_machines_is_made_of_one_of_each() -> None:
    loads = [100, 1, 1, 1, 1, 1, 1, 50]

    found = balanced(loads, spread(8, 4, 1), Machines(num_machines=2, num_groups=4))

    halves = [set(found.of_rank(rank) + found.of_rank(rank + 1)) for rank in (0, 2)]
    assert not halves[0] & halves[1]


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_skewed_loads_become_even(shape: Shape) -> None:
    loads, now = loads_of(shape), shape.start()

    found = balanced(loads, now, NO_MACHINES)

    assert now.imbalance(loads) > 1.5
    assert found.imbalance(loads) < 1.1


def test_copies_share_the_load_of_their_expert() -> None:
    found = ExpertMap((0, 1, 0, 2), 3, 2)

    assert found.loads_of_ranks([10, 1, 3]) == [6, 8]
    assert found.imbalance([10, 1, 3]) == pytest.approx(8 / 7)
    assert found.imbalance([0, 0, 0]) == 1.0


def test_experts_that_do_not_divide_and_ranks_that_outnumber_them_have_slots_all_the_same() -> None:
    assert spread(5, 2).experts == (0, 1, 2, 2, 3, 4)
    assert spread(3, 4).experts == (0, 0, 1, 2)
    assert spread(4, 2, 1).experts == (0, 1, 2, 2, 3, 0)
    with pytest.raises(InvalidConfig, match="2 more are all there are"):
        spread(4, 2, 3)


def test_a_map_without_an_expert_is_refused() -> None:
    with pytest.raises(ValueError, match="not each of 3 experts has a slot"):
        ExpertMap((0, 1, 1, 0), 3, 2)
    with pytest.raises(ValueError, match="3 slots on 2 ranks"):
        ExpertMap((0, 1, 2), 3, 2)
