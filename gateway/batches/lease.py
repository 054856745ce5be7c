"""Which gateway works on a batch: the one that made the newest `lease.N`, for as long as it beats.

    lease.1  000017    made by one gateway (O_EXCL), which writes a greater number now and then
    lease.2  000003    made by another when lease.1 had stayed the same for long: it alone goes on
    lease.2  over      left by a gateway that stopped: the next may be made at once

N is the holder's epoch, and part of the name of every file it writes. A holder that was stopped for
long and does not know of its successor writes to files that are not read any more, and notices at
its next beat. Clocks of different hosts are never compared.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from baton.core.errors import BatonError

PREFIX = "lease."
OVER = b"over\n"


class LeaseLost(BatonError):
    """Another gateway goes on with the batch."""


@dataclass(frozen=True, slots=True)
class LeaseRecord:
    """The last record of the newest holder. Epoch 0: no holder yet."""

    epoch: int
    said: bytes

    @property
    def is_over(self) -> bool:
        return self.epoch == 0 or self.said == OVER


def newest_record(folder: Path) -> LeaseRecord:
    """Raises FileNotFoundError if there is no such folder, OSError."""
    epoch = max(epochs(folder, PREFIX), default=0)
    return LeaseRecord(epoch, (folder / f"{PREFIX}{epoch}").read_bytes() if epoch else b"")


def epochs(folder: Path, prefix: str) -> list[int]:
    """Epochs of the files with that prefix, in order. Raises OSError."""
    ends = [name.removeprefix(prefix) for name in os.listdir(folder) if name.startswith(prefix)]
    return sorted(int(end) for end in ends if end.isdecimal())


class Lease:
    """One holder's lease. All methods block."""

    def __init__(self, folder: Path, epoch: int, fd: int) -> None:
        self._folder = folder
        self.epoch = epoch
        self._fd = fd
        self._num_beats = 0

    @classmethod
    def claim(cls, folder: Path, after: int) -> Lease | None:
        """Become the holder after `after`; None if another has. Raises OSError."""
        path = folder / f"{PREFIX}{after + 1}"
        try:
            fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        except (FileExistsError, FileNotFoundError):
            return None
        return cls(folder, after + 1, fd)

    def beat(self) -> None:
        """Raises LeaseLost, OSError."""
        self.check()
        self._num_beats += 1
        os.pwrite(self._fd, b"%020d\n" % self._num_beats, 0)
        os.fsync(self._fd)  # or another node of the same folder sees it late

    def check(self) -> None:
        """Raises LeaseLost, OSError."""
        is_next = (self._folder / f"{PREFIX}{self.epoch + 1}").exists()
        if is_next or not (self._folder / f"{PREFIX}{self.epoch}").exists():
            raise LeaseLost(f"another gateway goes on with {self._folder.name}")

    def give_up(self) -> None:
        """Release the lease, so that another gateway can take it at once. Safe to repeat."""
        if self._fd >= 0:
            fd, self._fd = self._fd, -1
            try:
                os.ftruncate(fd, 0)
                os.pwrite(fd, OVER, 0)
            finally:
                os.close(fd)
