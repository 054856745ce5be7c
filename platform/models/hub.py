"""Models of the Hugging Face hub: listing and reading their files.

    org/name[@revision] --> the hub's list of files: a commit, their sizes and digests

A complete copy in Hugging Face's own cache is used.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from baton.core.errors import CheckpointError
from baton.platform.models.digest import is_digest
from baton.platform.models.listing import (
    ADAPTER_CONFIG,
    ADAPTER_WEIGHTS,
    CONFIG,
    WEIGHTS,
    Listing,
    RemoteFile,
    files_in,
    is_model_file,
    list_files,
)
from baton.platform.models.node_cache import cache_root, size_of
from baton.platform.models.origins.origin import OriginUnreachable
from baton.platform.models.origins.web import AUTHORIZATION
from baton.platform.models.origins.web_folder import read_from

if TYPE_CHECKING:
    from huggingface_hub.hf_api import RepoSibling

SCHEME = "hf://"
MAIN = "main"
"""The default revision."""


@dataclass(frozen=True, slots=True)
class HubModel:
    repo: str
    revision: str | None

    @classmethod
    def parse(cls, name: str) -> HubModel:
        repo, _, revision = name.removeprefix(SCHEME).partition("@")
        return cls(repo.strip("/"), revision or None)

    def __str__(self) -> str:
        return f"{self.repo}@{self.revision}" if self.revision else self.repo


class Hub:
    """Hugging Face's hub as the origin of one model."""

    def __init__(self, model: HubModel) -> None:
        self.name = str(model)
        self._model = model
        self._commit = model.revision
        """The commit of the last listing: files are read as they are listed."""

    def look(self) -> Listing:
        # Imported lazily: it takes a second, which a local folder does not need.
        from huggingface_hub import HfApi
        from huggingface_hub.errors import HFValidationError, RevisionNotFoundError

        model = self._model
        try:
            found = HfApi().model_info(model.repo, revision=model.revision, files_metadata=True)
        except RevisionNotFoundError:
            raise CheckpointError(
                f"{model.repo} has no revision {model.revision}; leave it away for the newest"
            ) from None
        except HFValidationError:
            raise CheckpointError(
                f"{model} is neither a model folder nor a Hugging Face id (org/name); give one"
            ) from None
        except Exception as error:  # errors of the library, its HTTP client, and OSError
            raise OriginUnreachable(_reason(model, error)) from error
        files = [
            RemoteFile(one.rfilename, one.size or 0, _digest(one))
            for one in found.siblings or ()
            if is_model_file(one.rfilename)
        ]
        listing = list_files(self.name, files, is_trusted=True, version=found.sha or "")
        self._commit = listing.version
        return listing

    def read(self, file: RemoteFile, start: int) -> Iterator[bytes]:
        from huggingface_hub import get_token, hf_hub_url

        url = hf_hub_url(self._model.repo, file.name, revision=self._commit)
        token = get_token()
        return read_from(url, file, start, {AUTHORIZATION: f"Bearer {token}"} if token else {})


def cached_snapshot(
    model: HubModel, listing: Listing | None, *, wants_weights: bool, is_adapter: bool = False
) -> Path | None:
    """The complete folder in Hugging Face's own cache, if any: of the listed commit, else of the
    revision's last known commit. `is_adapter`: an adapter's is looked for, not a model's."""
    from huggingface_hub import try_to_load_from_cache
    from huggingface_hub.errors import HFValidationError

    revision = listing.version if listing else model.revision
    with suppress(HFValidationError):
        name = ADAPTER_CONFIG if is_adapter else CONFIG
        config = try_to_load_from_cache(model.repo, name, revision=revision)
        if isinstance(config, str):
            folder = Path(config).parent
            is_whole = holds_adapter(folder) if is_adapter else holds_weights(folder)
            if listing is None and (is_whole or not wants_weights):
                return folder
            if listing is not None and _holds(folder, listing.chosen(wants_weights=wants_weights)):
                return folder
    return None


def snapshot_listing(model: HubModel, folder: Path) -> Listing:
    """The listing of a snapshot in Hugging Face's cache, whose files are named by digest."""
    files = []
    for name, path in files_in(folder):
        blob = path.resolve().name if path.is_symlink() else ""
        kind = {64: "sha256", 40: "git"}.get(len(blob), "")
        digest = f"{kind}:{blob}" if kind and is_digest(f"{kind}:{blob}") else ""
        files.append(RemoteFile(name, path.stat().st_size, digest))
    return list_files(str(model), files, is_trusted=True, version=folder.name)


def holds_weights(folder: Path) -> bool:
    """Whether all weight files are present."""
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


def holds_adapter(folder: Path) -> bool:
    return any((folder / name).exists() for name in ADAPTER_WEIGHTS)


def _holds(folder: Path, files: Sequence[RemoteFile]) -> bool:
    return all(size_of(folder / file.name) == file.size for file in files)


def _digest(entry: RepoSibling) -> str:
    if entry.lfs is not None:
        return f"sha256:{entry.lfs.sha256}"
    return f"git:{entry.blob_id}" if entry.blob_id else ""


def _reason(model: HubModel, error: Exception) -> str:
    """Why it cannot be fetched, in one sentence with a remedy."""
    from huggingface_hub import constants
    from huggingface_hub.errors import (
        GatedRepoError,
        OfflineModeIsEnabled,
        RepositoryNotFoundError,
    )

    hub, cache = constants.ENDPOINT, cache_root()
    match error:
        case OfflineModeIsEnabled():
            return (
                f"{model} is no local folder and not, or not all, in the caches {cache} and "
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
        f"{model} is no local folder and not, or not all, in the caches {cache} and "
        f"{constants.HF_HUB_CACHE}, and {hub} did not answer ({type(error).__name__}: {error}); "
        "check the network, or give a model folder"
    )
