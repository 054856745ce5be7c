"""Starts that were judged well, and are not judged again, which would take half a second or more.

    what is judged    the files of the models by size and time, the settings, Baton's version
    what is kept      the memory it wants, in BATON_CACHE or ~/.cache/baton, a file each

Memory is looked at anew each time. Where nothing can be kept everything is judged.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from contextlib import suppress
from importlib.metadata import version
from pathlib import Path

import msgspec

from baton.platform.config.deployment import DeploymentConfig
from baton.platform.machine.memory import MemoryFacts

LOOKED_AT = (
    "prefill", "decode", "tiers", "dtype", "quantize", "deterministic", "load_format", "device",
    "attention_window", "attention_sinks",
)  # fmt: skip
"""Settings of which the verdict may depend; of `ray` only whether a cluster is joined."""


class Needs(msgspec.Struct, frozen=True, kw_only=True):
    """Bytes of this machine's memory."""

    start_bytes: int = 0
    """Bytes without which nothing comes up."""
    full_bytes: int = 0
    """Once all caches are full."""

    def fit(self, memory: MemoryFacts) -> bool:
        """Nothing is to be said."""
        return max(self.start_bytes, self.full_bytes) <= memory.left


class JudgedStart:
    """One start, by all that it is judged by."""

    def __init__(self, config: DeploymentConfig, folder: Path) -> None:
        settings = msgspec.to_builtins(config)
        looked_at = [version("baton-llm"), bool(config.ray.address)]
        looked_at += [settings[name] for name in LOOKED_AT]
        draft = config.decode.speculation.model
        folders = [folder, Path(draft)] if draft else [folder]
        looked_at += [[str(one.resolve()), *_files(one)] for one in folders]
        name = hashlib.sha256(msgspec.json.encode(looked_at)).hexdigest()
        self._file = _cache_folder() / f"{name}.json"

    def is_known(self, memory: MemoryFacts) -> bool:
        """It was judged well, and has room today."""
        try:
            return msgspec.json.decode(self._file.read_bytes(), type=Needs).fit(memory)
        except (OSError, msgspec.DecodeError):
            return False

    def keep(self, needs: Needs) -> None:
        with suppress(OSError):
            self._file.parent.mkdir(parents=True, exist_ok=True)
            new = self._file.with_suffix(f".{os.getpid()}")
            new.write_bytes(msgspec.json.encode(needs))
            new.replace(self._file)


def _files(folder: Path) -> Iterator[tuple[str, int, int]]:
    with suppress(OSError):
        for file in sorted(folder.iterdir()):
            facts = file.stat()
            yield file.name, facts.st_size, facts.st_mtime_ns


def _cache_folder() -> Path:
    cache = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    base = os.environ.get("BATON_CACHE") or f"{cache}/baton"
    return Path(base).expanduser() / "judged"
