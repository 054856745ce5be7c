from __future__ import annotations

from baton.core.ids import new_epoch
from baton.kv_transfer.handoff.scores import MAX_REMEMBERED, SourceScores

SOURCE = new_epoch()


def test_a_source_is_avoided_after_so_many_bad_pieces_within_a_minute_and_then_trusted_again() -> (
    None
):
    scores = SourceScores(max_corrupt=3)
    for now in (0.0, 10.0):
        scores.record(SOURCE, "p", now)
    assert not scores.why_avoided(SOURCE, 10.0)

    scores.record(SOURCE, "p", 20.0)

    assert scores.why_avoided(SOURCE, 79.9) == "it has sent 3 corrupt pieces of KV"
    assert not scores.why_avoided(SOURCE, 80.0)


def test_bad_pieces_that_are_far_between_are_only_counted() -> None:
    scores = SourceScores(max_corrupt=2)

    for now in range(0, 1000, 61):
        scores.record(SOURCE, "p", float(now))
        assert not scores.why_avoided(SOURCE, float(now))

    assert scores.metrics(1000.0) == {
        'pieces_corrupt_by_source_total{source="p"}': 17,
        "sources_avoided": 0,
    }


def test_another_incarnation_begins_with_a_clean_record() -> None:
    scores = SourceScores(max_corrupt=1)

    scores.record(SOURCE, "p", 0.0)

    assert scores.why_avoided(SOURCE, 0.0)
    assert not scores.why_avoided(new_epoch(), 0.0)


def test_only_so_many_sources_are_remembered() -> None:
    scores = SourceScores()

    for number in range(2 * MAX_REMEMBERED):
        scores.record(new_epoch(), f"p{number}", 0.0)

    assert len(scores.metrics(0.0)) == MAX_REMEMBERED + 1
