"""The rules by which a prefill replica that gets nowhere is given up."""

from __future__ import annotations

from baton.core.ids import Epoch
from baton.decode_service.prefill_patience import (
    AVOIDED_S,
    LEAST_S,
    MARGIN,
    MAX_AVOIDED_S,
    MOST_S,
    SLOW,
    PrefillPatience,
)

P = Epoch("p")


def test_silence_is_learnt_within_bounds_and_forgotten() -> None:
    patience = PrefillPatience()
    assert patience.silence_s(P, 0.0) == MOST_S  # of which nothing is known

    patience.succeeded(P, 0.01, 0.0)
    assert patience.silence_s(P, 0.0) == LEAST_S
    patience.succeeded(P, 1.5, 10.0)
    assert patience.silence_s(P, 10.0) == MARGIN * 1.5
    patience.succeeded(P, 0.01, 11.0)  # one quick handoff says little
    assert patience.silence_s(P, 11.0) > 0.9 * MARGIN * 1.5
    assert LEAST_S < patience.silence_s(P, 1000.0) < 1.01 * LEAST_S
    patience.succeeded(P, 100.0, 1000.0)
    assert patience.silence_s(P, 1000.0) == MOST_S


def test_who_gets_nowhere_again_and_again_is_left_alone_for_longer_and_given_more_time() -> None:
    patience = PrefillPatience()
    patience.succeeded(P, 0.01, 0.0)
    rests = []
    now = 0.0
    for _ in range(6):
        patience.missed(P, "got nowhere", now)
        step = now
        while patience.why_avoided(P, step):
            step += 0.5
        rests.append(step - now)
        now = step

    assert rests == [AVOIDED_S, 10.0, 20.0, 40.0, MAX_AVOIDED_S, MAX_AVOIDED_S]
    assert LEAST_S < patience.silence_s(P, now) <= MOST_S
    patience.succeeded(P, 0.01, now)
    patience.missed(P, "got nowhere", now)
    assert not patience.why_avoided(P, now + AVOIDED_S)
    assert not patience.why_avoided(Epoch("another"), now)


def test_a_prompt_may_take_a_multiple_of_what_prompts_take_of_late() -> None:
    patience = PrefillPatience()
    for _ in range(4):
        patience.computed(100, 1.0)
    assert patience.compute_s(1000) is None

    patience.computed(100, 50.0)  # one that was held up moves no median
    patience.computed(0, 5.0)  # found in the cache: says nothing
    assert patience.compute_s(1000) == LEAST_S + SLOW * 10.0
