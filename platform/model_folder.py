"""Finding the model: a folder, the demo that comes with Baton, or an id on the Hugging Face hub."""

from __future__ import annotations

from pathlib import Path

import baton
from baton.core.errors import CheckpointError
from baton.platform.config import DEMO_MODEL

_PACKAGE = Path(baton.__file__).parent
_DEMO_FOLDERS = (
    _PACKAGE / "demo_model",  # in a wheel
    _PACKAGE.parents[1] / "examples" / "demo_model" / "checkpoint",  # in a checkout
)
_WANTED = ["*.json", "*.safetensors", "*.jinja", "*.model"]


def find_model(model: str) -> Path:
    """Return a local folder with the model's files. Raises CheckpointError with what to do."""
    if model == DEMO_MODEL:
        return _demo_folder()
    folder = Path(model).expanduser()
    if folder.is_dir():
        if not (folder / "config.json").is_file():
            raise CheckpointError(f"{folder} has no config.json: not a Hugging Face model folder")
        return folder.resolve()
    if model.startswith((".", "/", "~")) or model.count("/") != 1:
        raise CheckpointError(f"no folder {model}; give a model folder or a Hugging Face id")
    return _download(model)


def _demo_folder() -> Path:
    for folder in _DEMO_FOLDERS:
        if (folder / "config.json").is_file():
            return folder
    raise CheckpointError("the demo model is not installed; give a model folder")


def _download(model: str) -> Path:
    # Imported here: a second nobody should wait for who serves a local folder.
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import (
        HfHubHTTPError,
        HFValidationError,
        LocalEntryNotFoundError,
    )

    try:
        return Path(snapshot_download(model, allow_patterns=_WANTED))
    except (HfHubHTTPError, HFValidationError, LocalEntryNotFoundError, OSError) as error:
        raise CheckpointError(
            f"{model} is no local folder, and could not be downloaded: {error}"
        ) from error
