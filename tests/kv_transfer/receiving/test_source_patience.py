"""The rules by which a source of KV that gets nowhere is given up."""

from __future__ import annotations

from baton.core.ids import Epoch
from baton.kv_transfer.receiving.source_patience import (
    AVOIDED_S,
    HALF_LIFE_S,
    LEAST_S,
    MARGIN,
    MAX_AVOIDED_S,
    MOST_S,
    TOO_SLOW,
    UNKNOWN_BYTES_PER_S,
    SourcePatience,
)

P = Epoch("p")


def test_silence_is_learnt_within_bounds_and_forgotten() -> None:
    patience = SourcePatience()
    assert patience.silence_s(P, 0.0) == MOST_S  # of which nothing is known

    for _ in range(9):  # quick handoffs, one after the other: its next graph may be compiled yet
        patience.succeeded(P, 0.01, 0.0)
    assert patience.silence_s(P, 0.0) == MOST_S
    assert patience.silence_s(P, HALF_LIFE_S) == LEAST_S + (MOST_S - LEAST_S) / 2
    assert LEAST_S < patience.silence_s(P, 1000.0) < 1.01 * LEAST_S
    patience.succeeded(P, 2.5, 1000.0)
    patience.succeeded(P, 0.01, 1001.0)
    assert 0.9 * MARGIN * 2.5 < patience.silence_s(P, 1001.0) < MARGIN * 2.5
    patience.succeeded(P, 100.0, 1002.0)
    assert patience.silence_s(P, 1002.0) == MOST_S


def test_who_gets_nowhere_again_and_again_is_asked_by_one_prompt_at_a_time() -> None:
    patience = SourcePatience()
    patience.succeeded(P, 0.01, 0.0)
    now, rests = 1000.0, []
    for _ in range(4):
        began_at = now
        patience.asked(P, began_at)
        now += patience.silence_s(P, now)
        patience.missed(P, "got nowhere", began_at, now)
        rest = next(s for s in range(100) if not patience.why_avoided(P, now + s))
        rests.append(rest)
        now += rest

    assert rests == [AVOIDED_S, 2 * AVOIDED_S, MAX_AVOIDED_S, MAX_AVOIDED_S]
    assert patience.silence_s(P, now - MAX_AVOIDED_S) == MOST_S
    patience.asked(P, now)
    assert patience.why_avoided(P, now) == "got nowhere"  # by the others
    assert not patience.why_avoided(Epoch("another"), now)
    assert not patience.why_avoided(P, now + MOST_S)  # the one was cancelled, say
    patience.succeeded(P, 0.01, now + 1)
    patience.asked(P, now + 1)
    assert not patience.why_avoided(P, now + 1)


def test_a_stall_counts_once_however_many_handoffs_it_ends() -> None:
    patience = SourcePatience()
    patience.succeeded(P, 0.01, 0.0)
    now = 10 * HALF_LIFE_S
    for num in range(20):
        patience.missed(P, "got nowhere", now - 5.0 + 0.1 * num, now + 0.1 * num)

    assert patience.silence_s(P, now + 2.0) <= 2.01 * LEAST_S
    assert patience.why_avoided(P, now + AVOIDED_S - 0.1)
    assert not patience.why_avoided(P, now + AVOIDED_S)


def test_the_least_rate_is_a_part_of_the_usual_one_shared_by_all_that_come() -> None:
    patience = SourcePatience()
    assert patience.least_bytes_per_s(P, "tcp") == UNKNOWN_BYTES_PER_S

    patience.came(P, "tcp", 1 << 10, 0.001, 0.0)  # too short to say anything
    assert patience.least_bytes_per_s(P, "tcp") == UNKNOWN_BYTES_PER_S
    patience.came(P, "tcp", 800 << 20, 1.0, 0.0)
    patience.came(P, "tcp", 400 << 20, 1.0, 0.0)
    usual = patience.least_bytes_per_s(P, "tcp") * TOO_SLOW
    assert 400 << 20 < usual < 800 << 20
    assert patience.least_bytes_per_s(P, "tcp") < usual / 40  # it may send to forty at once
    assert patience.least_bytes_per_s(P, "grpc") == UNKNOWN_BYTES_PER_S
    patience.num_coming = 4
    assert patience.least_bytes_per_s(P, "tcp") * TOO_SLOW == usual / 4

    patience.num_coming = 0
    patience.was_slow(P, "tcp", 0.0)
    patience.was_slow(Epoch("another"), "tcp", 0.0)
    assert patience.least_bytes_per_s(P, "tcp") * TOO_SLOW == usual / 2
    assert patience.least_bytes_per_s(Epoch("another"), "tcp") == UNKNOWN_BYTES_PER_S / 2
