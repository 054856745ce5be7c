"""Lists the local models: those that come with Baton, and fetched ones.

Only configurations and headers of weight files are read.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from baton.core.errors import CheckpointError
from baton.engine.checkpoint.active_parameters import active_parameters
from baton.engine.checkpoint.files.tensor_files import read_entries
from baton.engine.checkpoint.load import check_model, read_config
from baton.engine.models.config.description import architecture_of, read_json
from baton.engine.models.registry import family_of
from baton.platform.models.listing import ADAPTER_CONFIG, CONFIG
from baton.platform.models.model_folder import BUILT_IN, find_model
from baton.platform.models.node_cache import fetched


@dataclass(frozen=True, slots=True, kw_only=True)
class ListedModel:
    name: str
    """The name for `baton serve`."""
    folder: Path
    architecture: str = ""
    num_parameters: int = 0
    num_active: int = 0
    """Active parameters per token; fewer than all with experts."""
    dtype: str = ""
    """The dtype of most of the weights, as they are stored."""
    size_bytes: int = 0
    max_model_len: int = 0
    problem: str = ""
    """Why it cannot be served; empty if it can."""


def list_models() -> list[ListedModel]:
    return [describe(name, folder) for name, folder in [*_built_in(), *fetched(), *_cached()]]


def describe(name: str, folder: Path) -> ListedModel:
    """Facts about the model, up to the first problem."""
    known: dict[str, object] = {}
    adapter = folder / ADAPTER_CONFIG
    try:
        if adapter.exists() and not (folder / CONFIG).exists():
            base = read_json(adapter).get("base_model_name_or_path")
            raise CheckpointError(
                f"a LoRA adapter of {base}; serve that with --adapter NAME={name}"
            )
        known["architecture"] = architecture_of(read_json(folder / "config.json"))
        config = read_config(folder)
        known["max_model_len"] = config.max_model_len
        known["num_active"] = active_parameters(family_of(config.architecture).build(config))
        known |= _weights(folder)
        check_model(folder)
    except CheckpointError as error:
        known["problem"] = str(error)
    return ListedModel(name=name, folder=folder, **known)  # type: ignore[arg-type]


def _weights(folder: Path) -> dict[str, object]:
    entries = read_entries(folder).values()
    bytes_by_dtype: Counter[str] = Counter()
    for entry in entries:
        bytes_by_dtype[entry.dtype] += entry.num_bytes
    return {
        "num_parameters": sum(math.prod(entry.shape) for entry in entries),
        "dtype": bytes_by_dtype.most_common(1)[0][0] if bytes_by_dtype else "",
        "size_bytes": bytes_by_dtype.total(),
    }


def _built_in() -> Iterator[tuple[str, Path]]:
    for name in BUILT_IN:
        with suppress(CheckpointError):  # not installed
            yield name, find_model(name)


def _cached() -> Iterator[tuple[str, Path]]:
    """The models in the Hugging Face cache: of each its `main`, else what was modified last."""
    from huggingface_hub import constants, scan_cache_dir
    from huggingface_hub.errors import CacheNotFound

    try:
        repos = scan_cache_dir(constants.HF_HUB_CACHE).repos
    except CacheNotFound:
        return
    for repo in sorted(repos, key=lambda repo: repo.repo_id):
        revisions = sorted(repo.revisions, key=lambda one: ("main" in one.refs, one.last_modified))
        if repo.repo_type == "model" and revisions:
            newest = revisions[-1]
            is_named = "main" in newest.refs
            name = repo.repo_id if is_named else f"{repo.repo_id}@{newest.commit_hash}"
            if (newest.snapshot_path / "config.json").exists():
                yield name, newest.snapshot_path
