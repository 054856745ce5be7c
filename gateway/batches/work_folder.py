"""Unfinished batches: one folder each, shared by all gateways.

    ID/order          what was asked for; never changes
    ID/input          a copy of the input, so that deleting the file changes nothing
    ID/lease.N        who works on it (lease.py)
    ID/state.N        the batch, as the holder of that epoch saw it last
    ID/answers.N      its answers (journal.py)
    ID/cancel         it is to end

The folder is removed once the batch's end is stored elsewhere. All methods block, and raise
OSError.
"""

from __future__ import annotations

import logging
import os
import secrets
import shutil
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from baton.gateway.batches.lease import epochs
from baton.gateway.batches.records import ID, Batch, BatchOrder

log = logging.getLogger(__name__)

V = TypeVar("V")

STATE = "state."


class WorkFolder:
    def __init__(self, root: Path) -> None:
        self._root = root

    def of(self, batch_id: str) -> Path:
        return self._root / batch_id

    def create(self, order: BatchOrder) -> None:
        """Create the folder, atomically."""
        new = self._root / f".{secrets.token_hex(8)}"
        new.mkdir(mode=0o700, parents=True)
        _write(new / "order", order, fsync=True)
        new.rename(self.of(order.batch.id))

    def ids(self) -> list[str]:
        """The oldest first."""
        with suppress(FileNotFoundError):
            return sorted(name for name in os.listdir(self._root) if ID.fullmatch(name))
        return []

    def order(self, batch_id: str) -> BatchOrder | None:
        """None if it is over, or was never there."""
        if not ID.fullmatch(batch_id):
            return None
        return _read(self.of(batch_id) / "order", BatchOrder)

    def state(self, order: BatchOrder) -> Batch:
        """The batch as its newest holder has written it."""
        batch, folder = order.batch, self.of(order.batch.id)
        with suppress(FileNotFoundError):
            for epoch in epochs(folder, STATE)[-1:]:
                batch = _read(folder / f"{STATE}{epoch}", Batch) or batch
            cancelled_at = self.cancelled_at(order.batch.id)
            if cancelled_at is not None:
                batch.status, batch.cancelling_at = "cancelling", int(cancelled_at)
        return batch

    def write_state(self, batch: Batch, epoch: int) -> None:
        _write(self.of(batch.id) / f"{STATE}{epoch}", batch)

    def cancel(self, batch_id: str) -> None:
        """Safe to repeat. Nothing happens if it is over."""
        with suppress(FileNotFoundError):
            (self.of(batch_id) / "cancel").touch(mode=0o600)

    def cancelled_at(self, batch_id: str) -> float | None:
        with suppress(FileNotFoundError):
            return (self.of(batch_id) / "cancel").stat().st_mtime
        return None

    def input_path(self, batch_id: str) -> Path:
        return self.of(batch_id) / "input"

    def remove(self, batch_id: str) -> None:
        """Remove the folder. The order goes first: a reader that finds it finds everything."""
        folder = self.of(batch_id)
        (folder / "order").unlink(missing_ok=True)
        shutil.rmtree(folder, ignore_errors=True)


def _write(path: Path, value: Any, *, fsync: bool = False) -> None:
    new = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    with new.open("xb") as file:
        file.write(msgspec.json.encode(value))
        file.flush()
        if fsync:
            os.fsync(file.fileno())
    new.replace(path)


def _read(path: Path, kind: type[V]) -> V | None:
    """None if the file is missing, or truncated by a crash."""
    try:
        value: V = msgspec.json.decode(path.read_bytes(), type=kind)
        return value
    except FileNotFoundError:
        return None
    except msgspec.DecodeError as error:
        log.warning("%s cannot be read: %s", path, error)
        return None
