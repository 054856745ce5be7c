"""Models of the Hugging Face hub: which files of one are needed, and how they come here.

    org/name[@revision] --> the hub's list of files --> those not in the cache are downloaded
                       \\--> no network, or HF_HUB_OFFLINE: the cached snapshot, if it is whole

The cache is Hugging Face's own; nothing that is there is fetched twice.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path
from typing import Any, Protocol

from baton.core.errors import CheckpointError

log = logging.getLogger(__name__)

DESCRIPTIONS = ("*.json", "*.jinja", "*.model")
WEIGHTS = ("model.safetensors", "pytorch_model.bin")
"""The first kind there is is taken; big ones are cut: `model-00001-of-00003.safetensors`."""
NUM_AT_ONCE = 4


class DownloadReport(Protocol):
    """Called from several threads."""

    def begin(self, file: str, num_bytes: int) -> None: ...
    def advance(self, file: str, num_bytes: int) -> None: ...


class NoReport:
    def begin(self, file: str, num_bytes: int) -> None: ...
    def advance(self, file: str, num_bytes: int) -> None: ...


@dataclass(frozen=True, slots=True)
class HubModel:
    repo: str
    revision: str | None

    @classmethod
    def parse(cls, name: str) -> HubModel:
        repo, _, revision = name.partition("@")
        return cls(repo, revision or None)

    def __str__(self) -> str:
        return f"{self.repo}@{self.revision}" if self.revision else self.repo


def fetch(model: HubModel, report: DownloadReport, *, wants_weights: bool = True) -> Path:
    """Return a folder with the model's files. Raises CheckpointError with what to do."""
    # Imported where it is needed: a second nobody should wait for who serves a local folder.
    from huggingface_hub import HfApi, snapshot_download
    from huggingface_hub.errors import RevisionNotFoundError

    try:
        listing = HfApi().model_info(model.repo, revision=model.revision, files_metadata=True)
    except RevisionNotFoundError:
        raise CheckpointError(
            f"{model.repo} has no revision {model.revision}; leave it away for the newest"
        ) from None
    except Exception as error:  # those of the library, of its HTTP client, and OSError
        folder = _cached(model, wants_weights=wants_weights)
        if folder is None:
            raise CheckpointError(_reason(model, error)) from error
        log.warning("%s: serving what is cached: %s", model, error)
        return folder
    sizes = {entry.rfilename: entry.size or 0 for entry in listing.siblings or ()}
    files = choose_files(sizes, wants_weights=wants_weights)
    if wants_weights and not any(map(_is_weights, files)):
        raise CheckpointError(f"{model} holds neither {' nor '.join(WEIGHTS)}, in one file or cut")
    missing = [file for file in files if not _is_cached(model.repo, file, listing.sha)]
    for file in missing:
        report.begin(file, sizes[file])
    try:
        _download(model.repo, missing, listing.sha, report)
        # All is here; this records which commit the revision is, for the times without network.
        found = snapshot_download(
            model.repo,
            revision=model.revision,
            allow_patterns=files,
            tqdm_class=_bar("", NoReport()),  # its own would be drawn
        )
    except Exception as error:
        raise CheckpointError(
            f"{model} could not be downloaded: {error}; what has come is kept: try again"
        ) from error
    return Path(found)


def choose_files(names: Iterable[str], *, wants_weights: bool) -> list[str]:
    """The files of a repository that Baton reads: nothing of subfolders, weights of one kind."""
    top = [name for name in names if "/" not in name]
    chosen = [name for name in top if any(fnmatch(name, pattern) for pattern in DESCRIPTIONS)]
    for kind in WEIGHTS if wants_weights else ():
        stem, suffix = kind.split(".")
        weights = [n for n in top if n == kind or fnmatch(n, f"{stem}-?*-of-?*.{suffix}")]
        if weights:
            return chosen + weights
    return chosen


def _is_weights(name: str) -> bool:
    return name.endswith(tuple(Path(kind).suffix for kind in WEIGHTS))


def _download(repo: str, files: Sequence[str], commit: str | None, report: DownloadReport) -> None:
    from huggingface_hub import hf_hub_download

    def download(file: str) -> None:
        bar: Any = _bar(file, report)
        hf_hub_download(repo, file, revision=commit, tqdm_class=bar)

    with ThreadPoolExecutor(NUM_AT_ONCE) as threads:
        for _ in threads.map(download, files):
            pass


def _bar(file: str, report: DownloadReport) -> type:
    """What the library takes for a progress bar, and feeds."""
    from huggingface_hub.utils.tqdm import tqdm

    class Bar(tqdm):
        def __init__(self, *args: Any, **options: Any) -> None:
            super().__init__(*args, **{**options, "disable": True})  # type: ignore[no-untyped-call]

        def update(self, n: float | None = 1) -> None:
            report.advance(file, int(n or 0))

        def update_transfer(self, n: float | None = 1) -> None:
            """Ignore bytes on the wire, which may be packed; `update` counts those of the file."""

    return Bar


def _is_cached(repo: str, file: str, commit: str | None) -> bool:
    from huggingface_hub import try_to_load_from_cache

    return isinstance(try_to_load_from_cache(repo, file, revision=commit), str)


def _cached(model: HubModel, *, wants_weights: bool) -> Path | None:
    """The snapshot in the cache, if all of it is there."""
    from huggingface_hub import try_to_load_from_cache
    from huggingface_hub.errors import HFValidationError

    with suppress(HFValidationError):
        config = try_to_load_from_cache(model.repo, "config.json", revision=model.revision)
        if isinstance(config, str):
            folder = Path(config).parent
            if not wants_weights or holds_weights(folder):
                return folder
    return None


def holds_weights(folder: Path) -> bool:
    """Whether all the files are there that an index names, or the one file without an index."""
    for kind in WEIGHTS:
        if (folder / kind).exists():
            return True
        index = folder / f"{kind}.index.json"
        if index.exists():
            with suppress(OSError, ValueError, KeyError, AttributeError, TypeError):
                files = set(json.loads(index.read_bytes())["weight_map"].values())
                if all((folder / file).exists() for file in files):
                    return True
    return False


def _reason(model: HubModel, error: Exception) -> str:
    """Why it cannot be had, in one sentence, and what to do."""
    from huggingface_hub import constants
    from huggingface_hub.errors import (
        GatedRepoError,
        HFValidationError,
        OfflineModeIsEnabled,
        RepositoryNotFoundError,
    )

    hub = constants.ENDPOINT
    match error:
        case HFValidationError():
            return f"{model} is neither a model folder nor a Hugging Face id (org/name); give one"
        case OfflineModeIsEnabled():
            return (
                f"{model} is no local folder and not, or not all, in the cache "
                f"{constants.HF_HUB_CACHE}, and HF_HUB_OFFLINE is set; unset it to download the "
                "model, or give a model folder"
            )
        case GatedRepoError():
            return f"{model} is gated; accept its terms at {hub}/{model.repo} and set HF_TOKEN"
        case RepositoryNotFoundError():
            return (
                f"{model} is no local folder, and {hub} has no such model; correct the name, or "
                "set HF_TOKEN if it is private"
            )
    return (
        f"{model} is no local folder and not, or not all, in the cache {constants.HF_HUB_CACHE}, "
        f"and {hub} did not answer ({type(error).__name__}: {error}); check the network, or give "
        "a model folder"
    )
