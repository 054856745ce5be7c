"""Which prompts the decode replica computes itself, and what it says of them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from tests.gateway.fleet.known_replicas import view_of
from tests.router.placing import (
    LONG,
    NAMES,
    asked,
    decode,
    lent,
    place,
    place_at,
    placer,
    prefill,
    send,
)

from baton.core.step_times import StepTimes
from baton.router.cache.prompt_names import PromptNames
from baton.router.placement import Placement
from baton.router.policies.by_name import policy
from baton.router.prompt import Prompt
from baton.router.speeds.speed import MeasuredSpeed


def test_a_short_prompt_is_computed_locally_up_to_the_limit() -> None:
    replicas: dict[str, Any] = {"decode": [decode("d")], "prefill": [prefill("p")]}

    assert place_at(replace(LONG, num_tokens=64), **replicas) == ("d", [])
    assert place_at(replace(LONG, num_tokens=65), **replicas) == ("d", ["p"])


def test_a_short_prompt_is_left_to_a_prefill_replica_where_it_would_hold_up_many() -> None:
    """Its 60 tokens take 60 ms, a handoff 20 ms more. Steps are made for the others anyway.

    Before its steps are measured nobody knows how long they would be held up.
    """
    request = replace(LONG, num_tokens=60)

    def is_local(num_running: int, times: StepTimes | None = None) -> bool:
        here = decode("d", max_open=99, num_open=num_running)
        if times is not None:
            here.candidate.speed = MeasuredSpeed(times=times, max_chunk=512)
        return not place_at(request, decode=[here], prefill=[prefill("p")])[1]

    one_by_one = StepTimes(token_s=0.001, num_prompt_steps=99)
    assert is_local(0, one_by_one) and not is_local(1, one_by_one)
    assert is_local(9)
    by_the_step = StepTimes(constant_s=0.05, token_s=1e-4, num_prompt_steps=99)
    assert is_local(3, by_the_step) and not is_local(9, by_the_step)


def test_a_long_prompt_that_is_mostly_cached_is_computed_locally() -> None:
    almost = decode("d", num_cached_tokens=940)

    placement = place(LONG, decode=[almost], prefill=[prefill("p")])

    assert placement is not None
    assert placement.prefill == ()
    assert placement.reason.startswith(
        "60 of 1000 tokens uncached, too few for a handoff (gateway."
    )


def test_without_prefill_replicas_even_long_prompts_are_computed_locally() -> None:
    unready = [prefill("p", is_ready=False), prefill("q", is_ready=False)]
    without = place(LONG, decode=[decode("d")], prefill=[])
    placement = place(LONG, decode=[decode("d")], prefill=unready)

    assert without is not None and placement is not None
    assert without.prefill == placement.prefill == ()
    assert without.reason == "no prefill replica: computed locally"
    assert placement.reason == "no prefill replica of 2 takes prompts: computed locally"


def test_a_prompt_that_is_still_on_its_way_is_not_computed_locally_as_if_it_were_there() -> None:
    expecting = decode("d", num_expected_tokens=992)

    assert place_at(LONG, decode=[expecting], prefill=[prefill("p")]) == ("d", ["p"])


def test_a_further_choice_counts_what_the_first_has_brought_before_events_tell_of_it() -> None:
    first = decode("d", num_open=1, num_expected_tokens=LONG.num_tokens)
    near = replace(LONG, near=first.info.epoch)

    placement = place(near, decode=[first], prefill=[prefill("p")])
    of_a_stranger = place(LONG, decode=[first], prefill=[prefill("p")])

    assert placement is not None and placement.prefill == ()
    assert of_a_stranger is not None and len(of_a_stranger.prefill) == 1


def test_beside_another_only_the_last_block_may_be_missing_for_a_local_prefill() -> None:
    always_remote = placer(local_prefill_tokens=0)
    block_size = decode("d").info.layout.block_size
    near = replace(LONG, near=decode("d").info.epoch)

    def placed(num_cached: int) -> Placement:
        there = view_of(
            decode=(decode("d", num_cached_tokens=num_cached),), prefill=(prefill("p"),)
        )
        placement = always_remote.place(near, NAMES, there, 0.0)
        assert isinstance(placement, Placement)
        return placement

    local = placed(1000 - block_size)
    assert not local.prefill and placed(1000 - block_size - 1).prefill
    assert local.reason == (
        "beside another choice of this request; "
        f"{block_size} of 1000 tokens uncached, all in its last block: computed locally"
    )


def test_what_must_be_computed_locally_is_and_says_why() -> None:
    request = replace(LONG, local_because="an embedding of the prompt")

    placement = place(request, decode=[decode("d")], prefill=[prefill("p")])

    assert placement is not None
    assert placement.prefill == ()
    assert placement.reason == "an embedding of the prompt: computed locally"


def test_what_a_busy_pool_would_keep_waiting_is_computed_where_it_decodes() -> None:
    measured = StepTimes(token_s=0.001, num_prompt_steps=99)
    here = decode("d")
    here.candidate.speed = MeasuredSpeed(times=measured, max_chunk=512)
    busy = lent("p")
    view, router = view_of(decode=(here,), prefill=(busy,)), placer()
    send(router.place(asked("first"), NAMES, view, 0.0), view, 0.0)

    second = router.place(asked("second"), NAMES, view, 0.0)
    here.candidate.num_running = 5
    third = router.place(asked("third"), NAMES, view, 0.0)

    assert isinstance(second, Placement)
    assert second.prefill == () and "with the wait for a prefill replica" in second.reason
    assert isinstance(third, Prompt), "five others would be held up"


def test_where_all_prefill_replicas_are_late_nobody_waits_for_them() -> None:
    stuck = lent("p")
    view, router = view_of(decode=(decode("d", max_open=99),), prefill=(stuck,)), placer()
    send(router.place(asked("first"), NAMES, view, 0.0), view, 0.0)
    assert isinstance(router.place(asked("second"), NAMES, view, 0.0), Prompt)

    [prompt] = router.stranded(view, 2.0)
    again = router.place(replace(asked("second"), arrived_s=0.0), NAMES, view, 2.0)

    assert prompt.arrived_s == 0.0
    assert isinstance(again, Placement)
    assert again.reason == "all prefill replicas that could take it are late: computed locally"


def test_what_a_prompt_waits_for_is_counted_from_when_it_is_placed_not_from_its_arrival() -> None:
    """The replica has a second of work from 0 s on; it is 0.4 s when the prompt is placed there."""
    here = decode("d")
    here.candidate.book(Prompt(number=9, num_tokens=1000, arrived_s=0.0), 0, 0.0)

    request = replace(LONG, arrived_s=-5.0)
    placement = placer().place(request, NAMES, view_of(decode=(here,)), 0.4)

    assert isinstance(placement, Placement)
    assert placement.considered[0].wait_s == pytest.approx(0.6)


def test_conversations_stay_where_they_began_without_prefill_replicas_too() -> None:
    """Each turn is placed while its replica has more to do than the other."""
    one, other = decode("one", max_open=99), decode("other", max_open=99)
    view, router = view_of(decode=(one, other)), placer(policy=policy("session-sticky"))
    names, homes = PromptNames(range(1000)), set()
    for turn in range(4):
        request = replace(asked(f"turn {turn}"), num_tokens=1000)
        placement = router.place(request, names, view, 0.0)
        assert isinstance(placement, Placement)
        homes.add(placement.decode.replica_id)
        [home] = [replica for replica in view.decode if replica.info == placement.decode]
        home.candidate.book(placement.prompt, 0, 0.0)

    assert len(homes) == 1
