"""Answers on disk: whose they are, and which of them count."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from baton.gateway.batches.disk import Disk
from baton.gateway.batches.journal import Answered, Journal, part_of, parts_before, read_answers
from baton.gateway.batches.lease import Lease, LeaseLost, newest_record


@pytest.fixture
def disk() -> Iterator[Disk]:
    made = Disk()
    yield made
    made.close()


def answered(line: int, by: str) -> Answered:
    return Answered(line, True, b'{"by": "%s"}' % by.encode())


async def test_a_holder_that_was_slow_writes_nothing_that_counts(
    tmp_path: Path, disk: Disk
) -> None:
    slow = Lease.claim(tmp_path, after=0)
    assert slow is not None and Lease.claim(tmp_path, after=0) is None
    journal = Journal(tmp_path, slow.epoch, slow.check, disk)
    await journal.append(answered(1, "slow"))
    silent = newest_record(tmp_path)
    slow.beat()
    assert newest_record(tmp_path) != silent and not newest_record(tmp_path).is_over

    successor = Lease.claim(tmp_path, after=newest_record(tmp_path).epoch)
    assert successor is not None
    before = parts_before(tmp_path, successor.epoch)
    unchecked = Journal(tmp_path, slow.epoch, lambda: None, disk)  # was just about to write
    await unchecked.append(answered(2, "slow"))
    with pytest.raises(LeaseLost):
        await journal.append(answered(3, "slow"))
    with pytest.raises(LeaseLost):
        slow.beat()
    own = Journal(tmp_path, successor.epoch, successor.check, disk)
    for line in (1, 2, 3):
        await own.append(answered(line, "successor"))

    found = list(read_answers([*before, *part_of(tmp_path, successor.epoch)]))
    assert [(one.line, one.output) for one in found] == [
        (1, b'{"by": "slow"}'),
        (2, b'{"by": "successor"}'),
        (3, b'{"by": "successor"}'),
    ]
    successor.give_up()
    assert newest_record(tmp_path).is_over


async def test_a_line_that_was_cut_does_not_count_and_ends_its_journal(
    tmp_path: Path, disk: Disk
) -> None:
    fails = False

    def check() -> None:
        if fails:
            raise OSError("full")

    journal = Journal(tmp_path, 1, check, disk)
    await journal.append(answered(1, "a"))
    with (tmp_path / "answers.1").open("ab") as file:
        file.write(b'2 1 {"by": "a')
    fails = True
    with pytest.raises(OSError):
        await journal.append(answered(3, "a"))
    fails = False
    with pytest.raises(OSError):
        await journal.append(answered(3, "a"))

    assert [one.line for one in read_answers(part_of(tmp_path, 1))] == [1]
