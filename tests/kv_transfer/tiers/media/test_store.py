from __future__ import annotations

import errno
import os
import threading
import uuid
from pathlib import Path

import fsspec
import pytest
from tests.kv_transfer.tiers.blocks import (
    FORMAT,
    is_record_of,
    name_of,
    names_of,
    record_of,
)

from baton.core.clock import ManualClock
from baton.core.errors import InvalidConfig
from baton.kv_transfer.tiers.media import store
from baton.kv_transfer.tiers.media.store import (
    MAX_AT_ONCE,
    MAX_REMOVAL_DELAY,
    RETRY_AFTER_S,
    StoreTier,
)


@pytest.fixture(params=["folder", "bucket"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return str(tmp_path / "store") if request.param == "folder" else f"memory://{uuid.uuid4()}"


def opened(
    url: str, *, num_blocks: int | None = None, clock: ManualClock | None = None
) -> StoreTier:
    capacity = None if num_blocks is None else num_blocks * FORMAT.file_bytes
    tier = StoreTier(FORMAT, url, capacity, clock=clock or ManualClock())
    tier.open()
    return tier


def objects_in(url: str) -> list[str]:
    fs, root = fsspec.core.url_to_fs(url)
    return sorted(fs.find(root))


def test_what_one_replica_writes_another_finds(url: str) -> None:
    one, two = opened(url), opened(url)
    for number in range(20):
        assert one.put(record_of(number))

    assert two.num_leading(names_of(*range(20), 99, 3)) == 20
    found = two.read(names_of(*range(20), 99, 3))

    assert [is_record_of(record, number) for number, record in enumerate(found)] == [True] * 20
    assert len(objects_in(url)) == 20


def test_what_lies_in_a_folder_that_is_read_only_here_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tier = opened(str(tmp_path))
    tier.put(record_of(1))

    def refuse(*args: object, **options: object) -> None:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    monkeypatch.setattr(os, "utime", refuse)

    assert [is_record_of(record, 1) for record in tier.read(names_of(1))] == [True]


def test_equal_blocks_of_two_replicas_are_one_object(url: str) -> None:
    one, two = opened(url), opened(url)

    assert one.put(record_of(1)) and two.put(record_of(1))

    assert len(objects_in(url)) == 1
    assert two.stats.num_written == 0


def test_a_bounded_store_gives_up_the_oldest_whoever_wrote_them(url: str) -> None:
    clock = ManualClock()
    one, two = opened(url, num_blocks=4, clock=clock), opened(url, num_blocks=4, clock=clock)
    for number in range(4):
        one.put(record_of(number))
    for number, path in enumerate(objects_in(url)):  # by name: four in one tick of the clock
        if os.path.exists(path):
            os.utime(path, (number, number))
    assert not two.put(record_of(9)) or len(objects_in(url)) == 5  # it has not looked yet

    clock.advance(1e6)
    for name in two.victims():
        two.remove(name)
    two.put(record_of(10))

    assert len(objects_in(url)) <= 4
    assert two.holds(name_of(10)) and not two.holds(name_of(0))


def test_an_object_that_others_removed_is_a_miss(url: str) -> None:
    one, two = opened(url), opened(url)
    one.put(record_of(1))
    one.put(record_of(2))
    two.remove(name_of(1))

    assert one.read(names_of(1, 2)) == []
    assert not one.holds(name_of(1))
    assert one.stats.num_errors == one.stats.num_corrupt == 0


def test_a_broken_object_is_dropped_and_counted(url: str) -> None:
    tier = opened(url)
    tier.put(record_of(1))
    fs, _ = fsspec.core.url_to_fs(url)
    (path,) = objects_in(url)
    fs.pipe_file(path, fs.cat_file(path)[:-1])

    assert tier.read(names_of(1)) == []

    assert tier.stats.num_corrupt == 1 and objects_in(url) == []


def test_a_store_that_fails_is_let_alone_for_a_while(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = ManualClock()
    tier = opened(url, clock=clock)
    tier.put(record_of(1))

    class Refused(Exception):
        """What a cloud's library might raise."""

    def refuse(*args: object) -> None:
        raise Refused

    monkeypatch.setattr(tier._objects, "write", refuse)
    monkeypatch.setattr(tier._objects, "read", refuse)
    assert not tier.put(record_of(2))
    assert not tier.put(record_of(3)) and tier.read(names_of(1)) == []
    monkeypatch.undo()

    assert tier.stats.num_errors == 1  # the others were not tried
    clock.advance(RETRY_AFTER_S)
    assert tier.put(record_of(2)) and len(tier.read(names_of(2))) == 1


@pytest.mark.parametrize("num_blocks", [None, 4])
def test_what_is_struck_while_the_store_is_let_alone_is_removed_after_that(
    url: str, num_blocks: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = ManualClock()
    tier = opened(url, clock=clock, num_blocks=num_blocks)
    for number in (1, 2):
        tier.put(record_of(number))

    def refuse(*args: object) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(tier._objects, "remove", refuse)
    for number in (1, 2):  # the first begins the pause, the second comes within it
        tier.remove(name_of(number))
    assert len(objects_in(url)) == 2 and tier.stats.num_errors == 1
    for _ in range(64):  # a store that cannot be changed here is read all the same
        clock.advance(RETRY_AFTER_S)
        tier.read(names_of(1))
    assert tier.stats.num_errors < 16  # of two at once, after 1, 2, 4 ... 32 pauses
    monkeypatch.undo()

    clock.advance(RETRY_AFTER_S * MAX_REMOVAL_DELAY)
    assert (
        not tier.victims() and tier.num_leading(names_of(1)) == tier.num_leading(names_of(2)) == 0
    )
    assert tier.read(names_of(1)) == tier.read(names_of(2)) == []
    assert objects_in(url) == [] and tier.num_blocks == 0

    assert tier.put(record_of(1))
    assert [is_record_of(record, 1) for record in tier.read(names_of(1))] == [True]


def test_removals_that_fail_at_once_put_off_the_next_as_one(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = ManualClock()
    tier = opened(url, clock=clock)
    for number in range(MAX_AT_ONCE):
        tier.put(record_of(number))
    all_try = threading.Barrier(1)

    def refuse(*args: object) -> None:
        all_try.wait(60)
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(tier._objects, "remove", refuse)
    for number in range(MAX_AT_ONCE):
        tier.remove(name_of(number))
    all_try = threading.Barrier(MAX_AT_ONCE)
    clock.advance(RETRY_AFTER_S)
    tier.read(names_of(99))
    assert tier.stats.num_errors == 1 + MAX_AT_ONCE
    monkeypatch.undo()

    clock.advance(2 * RETRY_AFTER_S)
    tier.read(names_of(99))
    assert objects_in(url) == []


def test_a_store_that_hangs_does_not_keep_overdue_removals_from_closing(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock, may_proceed = ManualClock(), threading.Event()
    tier = opened(url, clock=clock)
    tier.put(record_of(1))

    def refuse(*args: object) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(tier._objects, "remove", refuse)
    tier.remove(name_of(1))
    monkeypatch.setattr(tier._objects, "remove", lambda key: may_proceed.wait(300))
    monkeypatch.setattr(store, "CLOSE_WITHIN_S", 0.01)
    clock.advance(RETRY_AFTER_S)
    closing = threading.Thread(target=tier.close, daemon=True)
    closing.start()
    closing.join(60)
    hangs = closing.is_alive()
    may_proceed.set()
    assert not hangs


def test_a_url_that_nothing_can_open_names_the_setting() -> None:
    with pytest.raises(InvalidConfig, match=r"tiers\.store\.url"):
        StoreTier(FORMAT, "nosuchprotocol://bucket/x", None)
