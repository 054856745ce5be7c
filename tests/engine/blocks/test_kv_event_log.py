"""The numbered changes of a prefix cache, and how little of them is kept."""

from __future__ import annotations

import pytest

from baton.core.kv_events import KvChange, KvEvent, KvEvents
from baton.engine.blocks import kv_event_log
from baton.engine.blocks.kv_event_log import KvEventLog


def name(letter: str) -> bytes:
    return letter.encode() * 16


def stored(*letters: str) -> KvEvent:
    return KvEvent(KvChange.STORED, b"".join(map(name, letters)))


def evicted(*letters: str) -> KvEvent:
    return KvEvent(KvChange.EVICTED, b"".join(map(name, letters)))


def store(log: KvEventLog, letters: str) -> None:
    """Each of them, and let it be read."""
    for letter in letters:
        log.stored(name(letter))
        log.flush()


def test_changes_of_one_kind_in_a_row_are_one_event() -> None:
    log = KvEventLog()
    log.stored(name("a"))
    log.stored(name("b"))
    log.evicted(name("c"))
    log.stored(name("d"))

    assert log.flush()

    assert log.read(1) == KvEvents(
        first_sequence=1, events=(stored("a", "b"), evicted("c"), stored("d"))
    )
    assert log.next_sequence == 4


def test_what_is_not_flushed_cannot_be_read() -> None:
    log = KvEventLog()
    log.stored(name("a"))

    assert log.read(1) == KvEvents(first_sequence=1)


def test_flushing_nothing_is_no_news() -> None:
    log = KvEventLog()
    assert not log.flush()
    log.stored(name("a"))
    assert log.flush()
    assert not log.flush()


def test_numbers_go_on_without_gaps_over_flushes_and_reads() -> None:
    log = KvEventLog()
    sequence = 1
    heard: list[KvEvent] = []
    for letters in ("a", "bc", "", "d"):
        store(log, letters)
        events = log.read(sequence)
        assert events is not None
        assert events.first_sequence == sequence
        heard += events.events
        sequence = events.next_sequence

    assert heard == [stored("a"), stored("b"), stored("c"), stored("d")]
    assert sequence == log.next_sequence == 5


def test_clearing_stands_for_everything_before_it() -> None:
    log = KvEventLog()
    log.stored(name("a"))
    log.cleared()
    log.stored(name("b"))
    log.flush()

    assert log.read(1) == KvEvents(
        first_sequence=1, events=(KvEvent(KvChange.CLEARED), stored("b"))
    )


def test_the_oldest_events_are_forgotten_and_who_needs_them_is_told() -> None:
    log = KvEventLog(max_names=6)
    store(log, "abcdef")

    kept = log.read(4)
    assert kept is not None
    assert kept.events == (stored("d"), stored("e"), stored("f"))
    assert log.read(3) is None


def test_a_change_that_is_larger_than_the_log_is_forgotten_at_once() -> None:
    log = KvEventLog(max_names=2)
    for letter in "abc":
        log.stored(name(letter))
    log.flush()

    assert log.read(1) is None
    assert log.read(2) == KvEvents(first_sequence=2)


def test_who_is_far_behind_hears_a_little_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kv_event_log, "MAX_READ", 4)
    log = KvEventLog()
    store(log, "abcde")
    sequence, heard = 1, []
    while (events := log.read(sequence)) is not None and events.events:
        heard.append(len(events.events))
        sequence = events.next_sequence

    assert (heard, sequence) == ([2, 2, 1], 6)


def test_nothing_is_known_of_events_to_come() -> None:
    assert KvEventLog().read(2) is None


def test_half_a_name_is_refused() -> None:
    with pytest.raises(ValueError, match="17 bytes are no names"):
        KvEvent(KvChange.STORED, bytes(17))
