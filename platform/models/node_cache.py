"""A node's cache of fetched models (BATON_MODEL_CACHE, else below ~/.cache/baton).

    models/NAME-1a2b3c4d/          one repository of the hub, or one folder elsewhere
      lock                         held by the process of this node that fetches
      refs/main                    the version that was fetched last, by revision
      VERSION.json                 what that version consists of
      VERSION/config.json ...      complete and verified files, renamed at the end
      VERSION.partial/...          incomplete files, which are resumed

Versions never change, and Baton never removes them; delete unused ones yourself.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

import msgspec

from baton.core.errors import CheckpointError
from baton.core.home import home
from baton.platform.models.listing import Listing, RemoteFile

CACHE_VARIABLE = "BATON_MODEL_CACHE"


def cache_root() -> Path:
    given = os.environ.get(CACHE_VARIABLE, "")
    if given:
        return Path(given).expanduser()
    return own_cache() / "models"


def own_cache() -> Path:
    """Baton's folder below the user's cache."""
    given = os.environ.get("XDG_CACHE_HOME")
    return (Path(given).expanduser() if given else home() / ".cache") / "baton"


@dataclass(frozen=True, slots=True)
class CachedRepository:
    folder: Path

    @classmethod
    def of(cls, place: str) -> CachedRepository:
        """`place`: a repository, URL or folder, without a revision."""
        slug = re.sub(r"[^A-Za-z0-9]+", "-", place)[-60:].strip("-")
        digest = hashlib.sha256(place.encode()).hexdigest()[:8]
        return cls(cache_root() / f"{slug}-{digest}")

    def version(self, listing: Listing) -> Path:
        return self.folder / listing.version

    def partial(self, listing: Listing) -> Path:
        return self.folder / f"{listing.version}.partial"

    def current(self, revision: str) -> Listing | None:
        """The version fetched last, complete or not."""
        try:
            return self.known((self._ref(revision)).read_text().strip())
        except (OSError, ValueError):
            return None

    def known(self, version: str) -> Listing | None:
        """The version's listing, if it was ever begun here."""
        with suppress(OSError, ValueError, msgspec.DecodeError):
            listing = msgspec.json.decode(
                (self.folder / f"{version}.json").read_bytes(), type=Listing
            )
            return listing if listing.version == version else None
        return None

    def missing(self, listing: Listing, files: Sequence[RemoteFile]) -> list[RemoteFile]:
        """The files that are missing, or have another size than when fetched."""
        folder = self.version(listing)
        return [file for file in files if size_of(folder / file.name) != file.size]

    def keep(self, listing: Listing) -> None:
        """Store the listing, atomically."""
        for folder in (self.version(listing), self.partial(listing)):
            folder.mkdir(parents=True, exist_ok=True)
        _write(
            self.folder / f"{listing.version}.json",
            msgspec.json.format(msgspec.json.encode(listing)),
        )

    def point(self, revision: str, listing: Listing) -> None:
        """Record the listing as the current version of `revision`, for when the source is away."""
        ref = self._ref(revision)
        if not ref.exists() or ref.read_text().strip() != listing.version:
            ref.parent.mkdir(parents=True, exist_ok=True)
            _write(ref, listing.version.encode())

    @contextmanager
    def locked(self, wait: Callable[[], None]) -> Iterator[None]:
        """The lock of the repository, for one process of the node; released by the system when the
        process ends. `wait` is called once if another holds it. Raises CheckpointError if the cache
        cannot be written.
        """
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            file = (self.folder / "lock").open("w")
        except OSError as error:
            raise no_place(self.folder, error) from error
        with file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                wait()
                fcntl.flock(file, fcntl.LOCK_EX)
            yield

    def _ref(self, revision: str) -> Path:
        return self.folder / "refs" / quote(revision, safe="").replace(".", "%2E")


def fetched() -> Iterator[tuple[str, Path]]:
    """The local models by requested name, each with its latest folder."""
    for folder in sorted(cache_root().glob("*-????????")):
        cached = CachedRepository(folder)
        for ref in sorted((cached.folder / "refs").glob("*")):
            listing = cached.known(ref.read_text().strip())
            if listing is not None and ref.name[0] != ".":
                yield listing.model, cached.version(listing)


def listing_of(folder: Path) -> Listing | None:
    """The listing of a version's folder; None for other folders."""
    return CachedRepository(folder.parent).known(folder.name)


def size_of(path: Path) -> int:
    """The file's size; -1 if it is missing."""
    try:
        return path.stat().st_size
    except OSError:
        return -1


def no_place(folder: Path, error: OSError) -> CheckpointError:
    return CheckpointError(
        f"cannot write to {folder} ({error.strerror}); make room there, or set {CACHE_VARIABLE} to "
        "a folder for models (docs/operating/models.md); what has come is kept"
    )


def _write(path: Path, data: bytes) -> None:
    beside = path.with_name(f".{path.name}.{os.getpid()}")
    beside.write_bytes(data)
    beside.replace(path)
