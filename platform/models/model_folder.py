"""Finding the model: a folder, the demo that comes with Baton, or an id on the Hugging Face hub."""

from __future__ import annotations

from pathlib import Path

import baton
from baton.core.errors import CheckpointError
from baton.platform.config.deployment import DEMO_MODEL
from baton.platform.models.hub import DownloadReport, HubModel, NoReport, fetch

_PACKAGE = Path(baton.__file__).parent
_CHECKOUT = _PACKAGE.parents[1] / "examples" / "demo_model"
BUILT_IN = {
    DEMO_MODEL: (_PACKAGE / "demo_model", _CHECKOUT / "checkpoint"),
    "draft": (_PACKAGE / "draft_model", _CHECKOUT / "draft"),
}
"""Models that come with Baton: where they are in a wheel, and in a checkout."""
HEADS_OF_DEMO = {
    "eagle": (_PACKAGE / "eagle_head", _CHECKOUT / "eagle"),
    "medusa": (_PACKAGE / "medusa_heads", _CHECKOUT / "medusa"),
}
"""The same of heads, which are no models, by method of speculation."""


def find_model(
    model: str, *, wants_weights: bool = True, report: DownloadReport | None = None
) -> Path:
    """Return a local folder with the model's files. Raises CheckpointError with what to do."""
    if model in BUILT_IN:
        return built_in_folder(model)
    folder = Path(model).expanduser()
    if folder.is_dir():
        if not (folder / "config.json").is_file():
            raise CheckpointError(f"{folder} has no config.json: not a Hugging Face model folder")
        return folder.resolve()
    if model.startswith((".", "/", "~")) or model.count("/") != 1:
        raise CheckpointError(
            f"no folder {model}; give a model folder or a Hugging Face id (org/name); "
            "`baton models` lists those that are here"
        )
    return fetch(HubModel.parse(model), report or NoReport(), wants_weights=wants_weights)


def built_in_folder(name: str) -> Path:
    """Of a model, or heads, that come with Baton. Raises CheckpointError."""
    for folder in {**BUILT_IN, **HEADS_OF_DEMO}[name]:
        if (folder / "config.json").is_file():
            return folder
    raise CheckpointError(f"the model `{name}` is not installed; give a model folder")
