"""Finding the model: a folder, the demo that comes with Baton, or what is fetched."""

from __future__ import annotations

from pathlib import Path

import baton
from baton.core.errors import CheckpointError
from baton.platform.config.deployment import DEMO_MODEL
from baton.platform.config.model_url import scheme_of, why_no_model_url
from baton.platform.models.download import DownloadReport, NoReport
from baton.platform.models.fetch import LAST, Source, fetch
from baton.platform.models.hub import MAIN, SCHEME, Hub, HubModel, cached_snapshot
from baton.platform.models.listing import ADAPTER_CONFIG
from baton.platform.models.origins.file_system import FileSystemFolder
from baton.platform.models.origins.web_folder import WebFolder
from baton.platform.models.peers import NoPeers, Peers

_PACKAGE = Path(baton.__file__).parent
_CHECKOUT = _PACKAGE.parents[1] / "examples" / "demo_model"
BUILT_IN = {
    DEMO_MODEL: (_PACKAGE / "demo_model", _CHECKOUT / "checkpoint"),
    "draft": (_PACKAGE / "draft_model", _CHECKOUT / "draft"),
}
"""Models that come with Baton: where they are in a wheel, and in a checkout."""
HEADS_OF_DEMO = {
    "eagle": (_PACKAGE / "eagle_head", _CHECKOUT / "eagle"),
    "p-eagle": (_PACKAGE / "p_eagle_head", _CHECKOUT / "p_eagle"),
    "medusa": (_PACKAGE / "medusa_heads", _CHECKOUT / "medusa"),
}
"""Folders of built-in draft heads, by method of speculation."""


def find_model(
    model: str,
    *,
    wants_weights: bool = True,
    report: DownloadReport | None = None,
    peers: Peers | None = None,
) -> Path:
    """Return a local folder with the model's files, fetched if it must be.

    `peers`: nodes that may have it. Raises CheckpointError with what to do.
    """
    if model in BUILT_IN:
        return built_in_folder(model)
    folder = Path(model).expanduser()
    if folder.is_dir():
        if not (folder / "config.json").is_file():
            raise CheckpointError(f"{folder} has no config.json: not a Hugging Face model folder")
        return folder.resolve()
    return fetch(
        source_of(model), report or NoReport(), peers or NoPeers(), wants_weights=wants_weights
    )


def find_adapter(
    where: str, *, report: DownloadReport | None = None, peers: Peers | None = None
) -> Path:
    """Return a local folder with the adapter's files, fetched if it must be.

    `peers`: nodes that may have it. Raises CheckpointError with what to do.
    """
    folder = Path(where).expanduser()
    if folder.is_dir():
        if not (folder / ADAPTER_CONFIG).is_file():
            raise CheckpointError(f"{folder} has no {ADAPTER_CONFIG}: not a LoRA adapter of PEFT")
        return folder.resolve()
    source = source_of(where, is_adapter=True)
    return fetch(source, report or NoReport(), peers or NoPeers(), wants_weights=True)


def local_folder(model: str) -> Path | None:
    """The folder that this machine has of itself; None for what would have to be fetched."""
    if model in BUILT_IN:
        return built_in_folder(model)
    folder = Path(model).expanduser()
    return folder.resolve() if folder.is_dir() else None


def whole_name(model: str) -> str:
    """A folder's path from the root; what is no folder, as it is."""
    folder = Path(model).expanduser()
    return str(folder.resolve()) if model not in BUILT_IN and folder.is_dir() else model


def source_of(model: str, *, is_adapter: bool = False) -> Source:
    """Where it is fetched from, if it is not here. Raises CheckpointError."""
    if why := why_no_model_url(model):
        raise CheckpointError(why)
    place, revision = place_of(model)
    if place.startswith(SCHEME):
        hub = HubModel.parse(model)
        return Source(
            model=str(hub),
            place=place,
            is_adapter=is_adapter,
            revision=revision,
            origin=Hub(hub),
            cached=lambda listing, wants: cached_snapshot(
                hub, listing, wants_weights=wants, is_adapter=is_adapter
            ),
        )
    match scheme_of(model):
        case "":
            kind = "an adapter's" if is_adapter else "a model"
            remedy = "" if is_adapter else "; `baton models` lists those that are here"
            reason = (
                f"no folder {model}; give {kind} folder or a Hugging Face id (org/name), or a "
                f"URL{remedy}"
            )
            return Source(
                model=model,
                place=place,
                is_adapter=is_adapter,
                origin=None,
                why_unreachable=reason,
            )
        case "http" | "https":
            web = WebFolder(model, is_adapter=is_adapter)
            return Source(model=model, place=place, is_adapter=is_adapter, origin=web)
    files = FileSystemFolder(model)
    return Source(model=model, place=place, is_adapter=is_adapter, origin=files)


def place_of(model: str) -> tuple[str, str]:
    """What it is a revision of, and which; the same on all nodes."""
    scheme = scheme_of(model)
    is_id = not scheme and not model.startswith((".", "/", "~")) and model.count("/") == 1
    if is_id or scheme == "hf":
        hub = HubModel.parse(model)
        return f"{SCHEME}{hub.repo}", hub.revision or MAIN
    return model.rstrip("/"), LAST


def built_in_folder(name: str) -> Path:
    """The folder of a model, or heads, that come with Baton. Raises CheckpointError."""
    for folder in {**BUILT_IN, **HEADS_OF_DEMO}[name]:
        if (folder / "config.json").is_file():
            return folder
    raise CheckpointError(f"the model `{name}` is not installed; give a model folder")
