"""A cache of starts that were checked successfully, since a check takes half a second or more.

    key        the models' files by size and time, the settings, Baton's version
    value      the memory it needs, in a file of BATON_CACHE or ~/.cache/baton

Free memory is read each time. Where nothing can be cached, every start is checked.
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
    "attention_window", "attention_sinks", "adapters",
)  # fmt: skip
"""Settings on which the verdict may depend; of `ray` only whether a cluster is joined."""


class Needs(msgspec.Struct, frozen=True, kw_only=True):
    """Memory that a start needs on this machine, in bytes."""

    start_bytes: int = 0
    """Bytes needed to start at all."""
    full_bytes: int = 0
    """Bytes once all caches are full."""

    def fit(self, memory: MemoryFacts) -> bool:
        """Whether the memory is enough, so that there is nothing to warn of."""
        return max(self.start_bytes, self.full_bytes) <= memory.left


class JudgedStart:
    """One start, identified by everything the check depends on."""

    def __init__(self, config: DeploymentConfig, folder: Path) -> None:
        settings = msgspec.to_builtins(config)
        looked_at = [version("baton-llm"), bool(config.ray.address)]
        looked_at += [settings[name] for name in LOOKED_AT]
        draft = config.decode.speculation.model
        folders = [folder, Path(draft)] if draft else [folder]
        folders += [Path(where) for where in config.adapters.values()]
        looked_at += [[str(one.resolve()), *_files(one)] for one in folders]
        name = hashlib.sha256(msgspec.json.encode(looked_at)).hexdigest()
        self._file = _cache_folder() / f"{name}.json"

    def is_known(self, memory: MemoryFacts) -> bool:
        """Whether it was checked successfully, and has enough memory now."""
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
