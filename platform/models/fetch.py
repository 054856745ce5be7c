"""Fetches a model to this node: once, by one process, and only the needed files.

the source is asked for its files --> all here: its folder
                                  \\-> missing files, from other nodes, else the source
the source does not answer        --> the version fetched last, if complete
                                  \\-> the version that other nodes have
a folder of another node          --> its present state; if that node is gone, as above
"""

from __future__ import annotations

import logging
import random
import shutil
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from threading import Event, Lock

import msgspec

from baton.core.errors import CheckpointError, ModelUnreachable
from baton.core.wording import count_of
from baton.gateway.text.model_files import ADDITIONAL_TEMPLATES
from baton.platform.models.borrowed_listing import listing_at_home, listing_of_most
from baton.platform.models.download import Download, DownloadReport
from baton.platform.models.listing import (
    ADAPTER_CONFIG,
    ADAPTER_WEIGHTS,
    CONFIG,
    WEIGHTS,
    Listing,
    RemoteFile,
    adapter_weights_of,
    weights_of,
)
from baton.platform.models.node_cache import (
    CACHE_VARIABLE,
    CachedRepository,
    no_place,
    size_of,
)
from baton.platform.models.origins.origin import Origin, OriginUnreachable, Place
from baton.platform.models.peers import Answers, NoPeers, Peer, Peers

log = logging.getLogger(__name__)

NUM_AT_ONCE = 4
"""Files."""
SPARE_BYTES = 1 << 28
"""Bytes of disk that are left free."""


LAST = "last"
"""The revision of sources without revisions."""


def _nothing_cached(listing: Listing | None, wants_weights: bool) -> Path | None:
    return None


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    model: str
    """The model as it is asked for."""
    place: str
    """The source without the revision."""
    is_adapter: bool = False
    """Whether an adapter is wanted of it, rather than a model."""
    revision: str = LAST
    origin: Place | None
    """None: only other nodes can have it."""
    why_unreachable: str = ""
    cached: Callable[[Listing | None, bool], Path | None] = _nothing_cached
    """Looks for a copy in another tool's cache: of the listed version, else of its last known
    one."""

    @property
    def is_lent(self) -> bool:
        return self.origin is None


def fetch(source: Source, report: DownloadReport, peers: Peers, *, wants_weights: bool) -> Path:
    """Return a folder with the model's files. Raises CheckpointError with a remedy,
    ModelUnreachable if a retry may help."""
    cached = CachedRepository.of(source.place)
    listing, refusal = _asked(source)
    if listing is not None:
        _check_kind(source, listing, wants_weights)
    if folder := _known(source, cached, listing, wants_weights):
        if listing is None:
            log.warning("%s; what was fetched before is used", refusal)
        return folder
    has_peers = not isinstance(peers, NoPeers)
    if listing is None and not (has_peers and (source.is_lent or _may_come(refusal))):
        raise refusal
    with cached.locked(report.wait):
        if folder := _known(source, cached, listing, wants_weights):
            return folder  # another process has fetched it
        version = "" if listing is None else listing.version
        asked = peers if wants_weights or listing is None else NoPeers()
        with asked.having(source.model, version, is_lent=source.is_lent) as answers:
            having = answers.having
            if listing is not None:
                found = listing
            elif home := _at_home(source, answers):
                found = home
            elif folder := _last(source, cached, wants_weights):
                log.warning("%s; what was fetched before is used", refusal)
                return folder
            elif of_most := listing_of_most(having, wants_weights=wants_weights):
                found = of_most
                log.warning("%s; it is taken from nodes that took it themselves", refusal)
            else:
                raise refusal
            _check_kind(source, found, wants_weights)
            own = None if listing is None else source.origin
            fetching = _Fetching(cached, found, tuple(having), own, report)
            folder = fetching.run(found.chosen(wants_weights=wants_weights))
            cached.point(source.revision, found)
            return folder


def _known(
    source: Source, cached: CachedRepository, listing: Listing | None, wants_weights: bool
) -> Path | None:
    """The complete local version, if any. The current version of a lent folder is only known to its
    node."""
    if listing is not None:
        return _here(source, cached, listing, wants_weights)
    return None if source.is_lent else _last(source, cached, wants_weights)


def _at_home(source: Source, answers: Answers) -> Listing | None:
    """The current listing of a lent folder. Raises ModelUnreachable while its node may not have
    answered: copies on other nodes do not count."""
    home = listing_at_home(answers.having)
    if home is None and source.is_lent and not answers.is_complete:
        raise ModelUnreachable(
            f"no folder {source.model} here, and not every other node says whether it is there; "
            "try again"
        )
    return home


def _may_come(refusal: CheckpointError) -> bool:
    return isinstance(refusal, ModelUnreachable)


def _asked(source: Source) -> tuple[Listing | None, CheckpointError]:
    """The source's listing, or the error."""
    if source.origin is None:
        return None, CheckpointError(source.why_unreachable)
    try:
        return source.origin.look(), CheckpointError()
    except OriginUnreachable as error:
        return None, ModelUnreachable(str(error))
    except CheckpointError as error:
        return None, error


def _here(
    source: Source, cached: CachedRepository, listing: Listing, wants_weights: bool
) -> Path | None:
    if cached.missing(listing, listing.chosen(wants_weights=wants_weights)):
        return source.cached(listing, wants_weights)
    with suppress(OSError):  # a folder written by others
        cached.point(source.revision, listing)
    return cached.version(listing)


def _last(source: Source, cached: CachedRepository, wants_weights: bool) -> Path | None:
    """The last fetched version, if complete."""
    listing = cached.current(source.revision)
    if listing is not None and (not wants_weights or _has_weights(source, listing)):
        wanted = listing.chosen(wants_weights=wants_weights)
        if not cached.missing(listing, wanted):
            return cached.version(listing)
    return source.cached(None, wants_weights)


def _has_weights(source: Source, listing: Listing) -> bool:
    names = [file.name for file in listing.files]
    return bool(adapter_weights_of(names) if source.is_adapter else weights_of(names))


def _check_kind(source: Source, listing: Listing, wants_weights: bool) -> None:
    """Raises CheckpointError if it is not what is wanted, or lacks its weights."""
    model, names = source.model, {file.name for file in listing.files}
    if source.is_adapter and ADAPTER_CONFIG not in names:
        raise CheckpointError(f"{model} has no {ADAPTER_CONFIG}: not a LoRA adapter of PEFT")
    if not source.is_adapter and CONFIG not in names:
        raise CheckpointError(
            f"{model} is a LoRA adapter ({ADAPTER_CONFIG}), and no model; serve the model that it "
            f"adapts, with --adapter NAME={model}"
        )
    if wants_weights and not _has_weights(source, listing):
        kinds = ADAPTER_WEIGHTS if source.is_adapter else WEIGHTS
        cut = "" if source.is_adapter else ", in one file or cut"
        raise CheckpointError(f"{model} holds neither {' nor '.join(kinds)}{cut}")


class _Fetching:
    """Fetches one version, under the lock of its repository."""

    def __init__(
        self,
        cached: CachedRepository,
        listing: Listing,
        peers: Sequence[Peer],
        origin: Origin | None,
        report: DownloadReport,
    ) -> None:
        self._cached = cached
        self._listing = _with_digests(listing, cached.known(listing.version))
        self._peers = [peer for peer in peers if peer.listing.version == listing.version]
        self._origin = origin
        self._report = report
        self._stop = Event()
        self._lock = Lock()

    def run(self, wanted: Sequence[RemoteFile]) -> Path:
        folder, began = self._cached.version(self._listing), time.monotonic()
        missing = self._cached.missing(self._listing, wanted)
        num_bytes = sum(file.size for file in missing)
        try:
            self._cached.keep(self._listing)
            self._check_room(missing)
        except OSError as error:
            raise no_place(folder, error) from error
        if self._peers:  # nodes that start together begin with different files, and lend them
            missing = random.sample(missing, len(missing))
        names = ", ".join(one.name for one in (*self._peers, self._origin) if one is not None)
        log.info(
            "fetching %s of %s into %s from %s",
            _counted(missing),
            self._listing.model,
            folder,
            names,
        )
        threads = ThreadPoolExecutor(NUM_AT_ONCE, thread_name_prefix="fetches models")
        try:
            for _ in threads.map(self._fetch, missing):
                pass
        finally:  # any end, including Ctrl-C
            self._stop.set()
            threads.shutdown(cancel_futures=True)
        partial = self._cached.partial(self._listing)
        for emptied in (partial / ADDITIONAL_TEMPLATES, partial):
            with suppress(OSError):  # another fetch left files there
                emptied.rmdir()
        log.info("fetched %.1f MB in %.1f s", num_bytes / 1e6, time.monotonic() - began)
        return folder

    def _fetch(self, file: RemoteFile) -> None:
        known = next(one for one in self._listing.files if one.name == file.name)
        origins: list[Origin] = []
        for peer in self._peers:
            try:
                if peer.has(known):
                    known = known if known.digest else peer.described(known)
                    origins.append(peer)
            except (OriginUnreachable, CheckpointError) as error:
                log.warning("%s: %s; it is not asked", peer.name, error)
        random.shuffle(origins)
        if self._origin is not None:
            origins.append(self._origin)
        if not origins:
            raise ModelUnreachable(f"no node that can be reached has {known.name}; try again")
        folder = self._cached.version(self._listing)
        partial = self._cached.partial(self._listing) / known.name
        digest = Download(known, folder, partial, self._report, self._stop).run(origins)
        self._note(msgspec.structs.replace(known, digest=digest))

    def _note(self, file: RemoteFile) -> None:
        """Store a digest that was computed here, for nodes that copy the file."""
        with self._lock:
            files = tuple(file if one.name == file.name else one for one in self._listing.files)
            if files != self._listing.files:
                self._listing = msgspec.structs.replace(self._listing, files=files)
                self._cached.keep(self._listing)

    def _check_room(self, missing: Sequence[RemoteFile]) -> None:
        folder, partial = self._cached.version(self._listing), self._cached.partial(self._listing)
        wanted = sum(file.size - max(0, size_of(partial / file.name)) for file in missing)
        free = shutil.disk_usage(folder).free
        if free < wanted + min(SPARE_BYTES, wanted):
            raise CheckpointError(
                f"{self._listing.model} takes {wanted / 1e9:.2f} GB more in {folder}, where "
                f"{free / 1e9:.2f} GB are free; make room there, or set {CACHE_VARIABLE} to a "
                "folder with more"
            )


def _with_digests(listing: Listing, known: Listing | None) -> Listing:
    """`listing` with the digests that were computed here before."""
    before = {file.name: file.digest for file in known.files} if known else {}
    files = (
        msgspec.structs.replace(file, digest=file.digest or before.get(file.name, ""))
        for file in listing.files
    )
    return msgspec.structs.replace(listing, files=tuple(files))


def _counted(files: Sequence[RemoteFile]) -> str:
    number = count_of(len(files), "file")
    return f"{number}, {sum(file.size for file in files) / 1e6:.1f} MB,"
