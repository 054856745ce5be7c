from __future__ import annotations

import errno
import os
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.kv_transfer.tiers.blocks import (
    FORMAT,
    OTHER_FORMAT,
    is_record_of,
    name_of,
    names_of,
    record_of,
)

from baton.core.clock import ManualClock
from baton.kv_transfer.tiers.media import disk as disk_module
from baton.kv_transfer.tiers.media.disk import RETRY_AFTER_S, DiskTier
from baton.kv_transfer.tiers.media.record import RecordFormat

MANY = 1 << 30


def opened(
    folder: Path,
    *,
    capacity_bytes: int = MANY,
    format_: RecordFormat = FORMAT,
    clock: ManualClock | None = None,
) -> DiskTier:
    tier = DiskTier(format_, folder, capacity_bytes, clock=clock or ManualClock())
    tier.open()
    return tier


def files_in(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*.kv"))


def file_of(folder: Path, number: int) -> Path:
    (found,) = folder.rglob(f"{name_of(number).hex()}-*.kv")
    return found


def test_a_restart_finds_the_blocks_again_the_least_recently_used_first(tmp_path: Path) -> None:
    before = opened(tmp_path)
    for number in (1, 2, 3):
        before.put(record_of(number))
        os.utime(file_of(tmp_path, number), ns=(number, number))
    before.read(names_of(1))  # used just now
    before.close()

    after = opened(tmp_path, capacity_bytes=3 * FORMAT.file_bytes)

    assert after.num_leading(names_of(1, 2, 3, 4)) == 3
    assert after.victims() == names_of(2)
    found = after.read(names_of(1, 2, 3, 4))
    assert [is_record_of(r, n) for r, n in zip(found, (1, 2, 3), strict=True)] == [True] * 3


def test_a_smaller_capacity_after_a_restart_is_kept_to(tmp_path: Path) -> None:
    before = opened(tmp_path)
    for number in range(5):
        before.put(record_of(number))
    before.close()

    after = opened(tmp_path, capacity_bytes=2 * FORMAT.file_bytes)

    assert after.num_blocks == len(files_in(tmp_path)) == 2


def test_replicas_that_share_a_folder_have_a_slot_each(tmp_path: Path) -> None:
    one, two = opened(tmp_path), opened(tmp_path)
    one.put(record_of(1))
    two.put(record_of(2))
    assert not two.holds(name_of(1)) and not one.holds(name_of(2))

    one.close()
    third = opened(tmp_path)

    assert third.holds(name_of(1)) and not third.holds(name_of(2))


def flip_a_bit(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[-5] ^= 4
    path.write_bytes(data)


def cut_short(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1])


def empty(path: Path) -> None:
    path.write_bytes(b"")


def grow(path: Path) -> None:
    path.write_bytes(path.read_bytes() + bytes(1 << 16))


def replace_by_another(path: Path) -> None:
    path.write_bytes(b"".join(FORMAT.encode(record_of(99))))


@pytest.mark.parametrize("harm", [flip_a_bit, cut_short, empty, grow, replace_by_another])
@pytest.mark.parametrize("is_restarted", [False, True])
def test_a_harmed_file_is_dropped_and_counted(
    tmp_path: Path, harm: Callable[[Path], None], is_restarted: bool
) -> None:
    tier = opened(tmp_path)
    for number in (1, 2, 3):
        tier.put(record_of(number))
    harm(file_of(tmp_path, 2))
    if is_restarted:
        tier.close()
        tier = opened(tmp_path)

    found = tier.read(names_of(1, 2, 3))

    assert len(found) == 1 and is_record_of(found[0], 1)
    assert tier.stats.num_corrupt == 1
    assert not tier.holds(name_of(2)) and len(files_in(tmp_path)) == 2
    assert tier.num_bytes == 2 * FORMAT.file_bytes


def test_another_layout_is_a_miss_and_takes_room(tmp_path: Path) -> None:
    other = opened(tmp_path, format_=OTHER_FORMAT)
    other.put(record_of(1, OTHER_FORMAT))
    other.close()

    tier = opened(tmp_path, capacity_bytes=FORMAT.file_bytes)

    assert not tier.holds(name_of(1)) and tier.read(names_of(1)) == []
    assert tier.num_bytes == OTHER_FORMAT.file_bytes
    assert tier.victims() == []  # it is gone at once: nobody here could read it
    assert tier.put(record_of(1)) and tier.num_bytes == FORMAT.file_bytes
    assert tier.stats.num_corrupt == 0


def test_what_is_not_ours_is_let_alone(tmp_path: Path) -> None:
    opened(tmp_path).close()
    slot = tmp_path / "v1" / "slot-0"
    (slot / "ab").mkdir()
    (slot / "ab" / "notes.txt").write_text("mine")
    (slot / "readme").write_text("mine")

    tier = opened(tmp_path, capacity_bytes=1)

    assert tier.num_blocks == 0
    assert (slot / "ab" / "notes.txt").exists() and (slot / "readme").exists()


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EACCES, errno.EROFS, errno.EIO])
def test_when_writing_fails_reading_goes_on_and_writing_is_tried_again_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    clock = ManualClock()
    tier = opened(tmp_path, clock=clock)
    tier.put(record_of(1))

    def refuse(*args: object, **options: object) -> None:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(disk_module, "write_whole", refuse)
    assert not tier.put(record_of(2))
    monkeypatch.undo()

    assert not tier.put(record_of(2))  # not even tried
    assert tier.stats.num_errors == 1
    assert len(tier.read(names_of(1))) == 1
    clock.advance(RETRY_AFTER_S)
    assert tier.put(record_of(2)) and tier.holds(name_of(2))


def test_what_lies_on_a_disk_that_became_read_only_is_still_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tier = opened(tmp_path)
    tier.put(record_of(1))

    def refuse(*args: object, **options: object) -> None:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    monkeypatch.setattr(os, "utime", refuse)

    assert [is_record_of(record, 1) for record in tier.read(names_of(1))] == [True]
    assert tier.holds(name_of(1))


def test_a_write_that_hangs_does_not_hold_up_the_end_and_its_slot_is_let_go_when_it_is_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(disk_module, "END_OF_WRITE_S", 0.01)
    tier = opened(tmp_path)
    is_writing, may_go_on = threading.Event(), threading.Event()

    def hang(*args: object, **options: object) -> None:
        is_writing.set()
        may_go_on.wait(60)

    monkeypatch.setattr(disk_module, "write_whole", hang)
    writer = threading.Thread(target=tier.put, args=(record_of(1),))
    writer.start()
    is_writing.wait(60)
    closer = threading.Thread(target=tier.close, daemon=True)

    closer.start()
    closer.join(60)
    has_ended = not closer.is_alive()
    other = opened(tmp_path)  # nobody else may have the slot that is being written to
    may_go_on.set()
    writer.join(60)

    assert has_ended
    assert [path.name for path in sorted((tmp_path / "v1").iterdir())] == ["slot-0", "slot-1"]
    other.close()
    opened(tmp_path).put(record_of(2))
    assert len(list((tmp_path / "v1").iterdir())) == 2


def test_a_really_full_disk_leaves_no_half_file(tmp_path: Path) -> None:
    """A limit on file sizes is how one process meets a full disk without root."""
    script = f"""
import resource, signal, sys
from pathlib import Path
from tests.kv_transfer.tiers.blocks import FORMAT, record_of
from baton.kv_transfer.tiers.media.disk import DiskTier
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (FORMAT.file_bytes // 2, FORMAT.file_bytes // 2))
tier = DiskTier(FORMAT, Path({str(tmp_path)!r}), 1 << 30)
tier.open()
assert not tier.put(record_of(1))
assert tier.stats.num_errors == 1 and tier.num_bytes == 0
"""
    subprocess.run([sys.executable, "-c", script], check=True, env=_env(), timeout=60)

    assert [path for path in tmp_path.rglob("*") if path.is_file() and path.name != "lock"] == []


def test_a_folder_deleted_under_it_is_made_anew_after_a_while(tmp_path: Path) -> None:
    clock = ManualClock()
    tier = opened(tmp_path / "cache", clock=clock)
    tier.put(record_of(1))
    shutil.rmtree(tmp_path / "cache")

    assert tier.read(names_of(1)) == []
    assert not tier.put(record_of(2))
    clock.advance(RETRY_AFTER_S)

    assert tier.put(record_of(3)) and tier.num_blocks == 1
    assert len(files_in(tmp_path)) == 1


def test_a_folder_that_cannot_be_made_is_a_tier_that_holds_nothing(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")

    tier = opened(tmp_path / "file" / "cache")

    assert not tier.put(record_of(1)) and tier.read(names_of(1)) == []
    assert tier.stats.num_errors == 1


WRITER = """
import sys
from pathlib import Path
from tests.kv_transfer.tiers.blocks import FORMAT, record_of
from baton.kv_transfer.tiers.media.disk import DiskTier
tier = DiskTier(FORMAT, Path(sys.argv[1]), 1 << 30)
tier.open()
print("ready", flush=True)
number = 0
while True:
    tier.put(record_of(number))
    print(number, flush=True)
    number += 1
"""


@pytest.mark.parametrize("num_written", [1, 17, 60])
def test_after_kill_9_in_the_middle_of_writing_all_that_was_written_is_whole(
    tmp_path: Path, num_written: int
) -> None:
    writer = subprocess.Popen(
        [sys.executable, "-c", WRITER, str(tmp_path)], stdout=subprocess.PIPE, env=_env(), text=True
    )
    assert writer.stdout is not None
    assert writer.stdout.readline() == "ready\n"
    for _ in range(num_written):
        writer.stdout.readline()
    writer.send_signal(signal.SIGKILL)
    last = [int(line) for line in writer.stdout.read().split("\n")[:-1]]
    writer.wait()

    tier = opened(tmp_path)

    num_known = max(last, default=num_written - 1) + 1
    found = tier.read(names_of(*range(num_known + 5)))
    assert len(found) >= num_known
    assert all(is_record_of(record, number) for number, record in enumerate(found))
    assert tier.stats.num_corrupt == 0
    assert list(tmp_path.rglob("*.tmp")) == []  # of the file that was being written
    assert not list((tmp_path / "v1").glob("slot-1"))  # the dead one's lock was let go


def _env() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
