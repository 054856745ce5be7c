"""Downloads one file to this node.

.partial/NAME    grows; a later process resumes it, from any origin
NAME             exists once the file is complete, verified and synced
"""

from __future__ import annotations

import logging
import os
from collections.abc import Sequence
from pathlib import Path
from threading import Event
from typing import IO, Protocol

from baton.core.errors import CheckpointError, ModelUnreachable
from baton.platform.models.digest import BLOCK_BYTES, Hasher, hasher, kind_of
from baton.platform.models.listing import RemoteFile
from baton.platform.models.node_cache import no_place, size_of
from baton.platform.models.origins.origin import Origin, OriginUnreachable

log = logging.getLogger(__name__)

PAUSES_S = (0.5, 1.0, 2.0, 4.0, 8.0)
"""Seconds before each retry, starting over whenever bytes have arrived."""


class DownloadReport(Protocol):
    """Called from several threads."""

    def begin(self, file: str, num_bytes: int) -> None: ...
    def advance(self, file: str, num_bytes: int) -> None: ...
    def wait(self) -> None:
        """Called when another process of this node fetches the same."""


class NoReport:
    def begin(self, file: str, num_bytes: int) -> None: ...
    def advance(self, file: str, num_bytes: int) -> None: ...
    def wait(self) -> None: ...


class Stopped(Exception):
    """The download was cancelled."""


class _WrongBytes(Exception):
    """The content does not match its size or digest."""


class Download:
    def __init__(  # one file, and who has a say in it
        self,
        file: RemoteFile,
        folder: Path,
        partial: Path,
        report: DownloadReport,
        stop: Event,
        pauses_s: Sequence[float] = PAUSES_S,
    ) -> None:
        self._file = file
        self._folder = folder
        self._partial = partial
        self._report = report
        self._reported = 0
        self._stop = stop
        self._pauses_s = pauses_s

    def run(self, origins: Sequence[Origin]) -> str:
        """Fetch the file from the first origin that has it, and return its digest. Raises
        ModelUnreachable if the last origin does not answer, CheckpointError for a permanent
        failure.
        """
        self._report.begin(self._file.name, self._file.size)
        *others, last = origins
        for origin in others:
            try:
                return self._from(origin, ())
            except (OriginUnreachable, CheckpointError, _WrongBytes) as error:
                log.warning("%s: %s; it is asked for elsewhere", origin.name, error)
        try:
            return self._from(last, self._pauses_s)
        except OriginUnreachable as error:
            raise ModelUnreachable(
                f"{self._file.name} does not come from {last.name} ({error}); what has come is "
                "kept: check the network and try again"
            ) from error
        except _WrongBytes as error:
            raise CheckpointError(
                f"{self._file.name} from {last.name}: {error}; it is broken there, or on the way"
            ) from None

    def _from(self, origin: Origin, pauses_s: Sequence[float]) -> str:
        attempt, is_second = 0, False
        while True:
            before = size_of(self._partial)
            try:
                return self._finish(self._take(origin))
            except _WrongBytes as error:
                self._partial.unlink(missing_ok=True)
                if is_second:
                    raise
                log.warning("%s: %s: %s; taken anew", origin.name, self._file.name, error)
                is_second = True
            except OriginUnreachable as error:
                attempt = 0 if size_of(self._partial) > before else attempt
                if attempt == len(pauses_s):
                    raise
                log.warning("%s; tried again in %g s", error, pauses_s[attempt])
                if self._stop.wait(pauses_s[attempt]):
                    raise Stopped from None
                attempt += 1

    def _take(self, origin: Origin) -> Hasher:
        """Fetch the missing bytes, and return a hasher over the whole file."""
        size = self._file.size
        found = hasher(kind_of(self._file.digest), size)
        try:
            for path in (self._partial, self._folder / self._file.name):
                path.parent.mkdir(exist_ok=True)
            with self._partial.open("a+b") as partial:
                here = _hashed(partial, found)
                self._count(here)
                for piece in origin.read(self._file, here) if here < size else ():
                    if self._stop.is_set():
                        raise Stopped
                    here += len(piece)
                    if here > size:
                        break
                    partial.write(piece)
                    found.update(piece)
                    self._count(here)
                partial.flush()
                os.fsync(partial.fileno())
        except OSError as error:
            raise no_place(self._folder, error) from error
        if here < size:
            raise OriginUnreachable(
                f"{origin.name}/{self._file.name} ended after {here} of {size} bytes"
            )
        if here > size:
            raise _WrongBytes(f"more than the {size} bytes that are promised")
        return found

    def _finish(self, found: Hasher) -> str:
        promised = self._file.digest
        digest = f"{kind_of(promised)}:{found.hexdigest()}"
        if promised and digest != promised:
            raise _WrongBytes(f"{digest} where {promised} is promised")
        self._partial.replace(self._folder / self._file.name)
        return digest

    def _count(self, num_bytes: int) -> None:
        """Report the bytes so far; fewer than before if the file is restarted."""
        self._report.advance(self._file.name, num_bytes - self._reported)
        self._reported = num_bytes


def _hashed(partial: IO[bytes], found: Hasher) -> int:
    """Hash the bytes already present."""
    partial.seek(0)
    num_bytes = 0
    while block := partial.read(BLOCK_BYTES):
        found.update(block)
        num_bytes += len(block)
    return num_bytes
