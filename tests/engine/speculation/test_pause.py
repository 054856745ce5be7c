"""When drafting pauses because it loses time, and for how long; how likely drafts are accepted."""

from __future__ import annotations

from dataclasses import replace

import pytest

from baton.core.sampling import SamplingParams
from baton.engine.request.request import Request
from baton.engine.speculation.acceptance_rates import AcceptanceRates
from baton.engine.speculation.pause import (
    FIRST_WINDOW,
    MAX_PROLONGED,
    MIN_PAUSE,
    TRIAL_SHARE,
    Balance,
    Pause,
)


def test_pauses_grow_while_trials_fail_until_drafts_have_won() -> None:
    lost = Balance(
        saved_s=-1.0, spent_s=2.0, plain_s=1.0, num_running=2, num_verified=2, is_refused=False
    )
    won = replace(lost, saved_s=1.0)

    def length_of_next(pause: Pause) -> int:
        """Steps of the next pause."""
        while not pause.is_on:
            pause.add(lost, lambda: 1.0)
        num_steps = 0
        while pause.is_on:
            pause.add_paused_step(1.0, lambda: True)
            num_steps += 1
        return num_steps

    pause = Pause()
    first, second, third, fourth = (length_of_next(pause) for _ in range(4))
    for _ in range(FIRST_WINDOW):
        pause.add(won, lambda: 1.0)

    assert first == pytest.approx(2 / TRIAL_SHARE)
    assert (second, third, fourth) == (2 * first, 4 * first, 4 * first)
    assert length_of_next(pause) == MIN_PAUSE


@pytest.mark.parametrize(("could_pay", "times"), [(True, 1), (False, 1 + MAX_PROLONGED)])
def test_a_trial_is_refused_where_no_draft_could_be_worth_its_row(
    could_pay: bool, times: int
) -> None:
    lost = Balance(
        saved_s=-1.0, spent_s=2.0, plain_s=1.0, num_running=2, num_verified=2, is_refused=False
    )
    pause = Pause()
    while not pause.is_on:
        pause.add(lost, lambda: 1.0)

    num_steps = 0
    while pause.is_on:
        pause.add_paused_step(1.0, lambda: could_pay)
        num_steps += 1

    assert num_steps == pytest.approx(times * 2 / TRIAL_SHARE)


def test_a_pause_ends_with_those_who_ran_if_drafts_have_saved_what_they_lost() -> None:
    won = Balance(
        saved_s=1.0, spent_s=1.0, plain_s=1.0, num_running=2, num_verified=2, is_refused=False
    )
    lost = replace(won, saved_s=-1.0)
    rich, poor = Pause(), Pause()
    for _ in range(FIRST_WINDOW):
        rich.add(won, lambda: 1.0)

    for pause in (rich, poor):
        while not pause.is_on:
            pause.add(lost, lambda: 1.0)
        pause.left()
        assert pause.is_on
        pause.left()

    assert not rich.is_on
    assert poor.is_on


@pytest.mark.parametrize("has_won", [True, False])
def test_a_late_step_of_drafts_not_worth_a_row_ends_only_those_that_have_not_won(
    has_won: bool,
) -> None:
    won = Balance(
        saved_s=1.0, spent_s=1.0, plain_s=1.0, num_running=2, num_verified=2, is_refused=False
    )
    late = replace(won, saved_s=-1.0, spent_s=2.0, num_verified=0, is_refused=True)
    pause = Pause()

    for balance in (*[won] * (FIRST_WINDOW if has_won else 1), late):
        pause.add(balance, lambda: 1.0)

    assert pause.is_on is not has_won


def test_survival_follows_what_came_of_drafts_that_were_as_sure() -> None:
    rates = AcceptanceRates()
    request = Request("r", [1], sampling=SamplingParams())
    for _ in range(200):
        rates.learn(request, [0.9, 0.9, 0.1], 2)

    sure, unsure = rates.of(request, [0.9]), rates.of(request, [0.1])

    assert sure[0] > 0.95
    assert unsure[0] < 0.1
    assert rates.of(request, [0.9, 0.1])[1] == sure[0] * unsure[0]
