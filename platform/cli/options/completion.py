"""Shell completion of model names; no network, no slow imports."""

from __future__ import annotations

import os
from pathlib import Path

from baton.platform.models.model_folder import BUILT_IN
from baton.platform.models.node_cache import fetched


def complete_model(incomplete: str) -> list[str]:
    """Models that come with Baton, and those that were fetched, by Baton or by others."""
    names = dict.fromkeys([*BUILT_IN, *(model for model, _ in fetched()), *cached_ids()])
    return [name for name in names if name.startswith(incomplete)]


def cached_ids() -> list[str]:
    """Model ids in the cache, from its folder names: models--org--name."""
    parts = (path.name.split("--") for path in cache_folder().glob("models--*--*"))
    return sorted(f"{org}/{'--'.join(name)}" for _, org, *name in parts)


def cache_folder() -> Path:
    """Hugging Face's cache, found as huggingface_hub does, which takes half a second to import."""
    cache = Path(os.environ.get("XDG_CACHE_HOME", "~/.cache")) / "huggingface"
    home = Path(os.environ.get("HF_HOME", cache))
    return Path(os.environ.get("HF_HUB_CACHE", home / "hub")).expanduser()
