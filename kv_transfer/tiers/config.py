"""Settings of KV tiers. Frozen; an invalid value raises ValueError naming it.

    tiers:
      host: {gib: 8}                                  off unless it is given a size
      disk: {folder: /var/cache/baton, gib: 200}      off unless it is given a folder
      store: {url: s3://bucket/kv}                    off unless it is given a URL

Both pools share this branch, since tiers belong to machines, not to roles. Sizes are per replica,
except the store's, which all replicas share.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

GIB = 1 << 30


def _check_not_negative(**fields: float) -> None:
    for name, value in fields.items():
        if not 0 <= value < math.inf:
            raise ValueError(f"{name} must be 0 or more, not {value}")


@dataclass(frozen=True, slots=True, kw_only=True)
class HostTierConfig:
    """A tier in host memory, private to a replica and lost with it."""

    gib: float = 0.0
    """GiB of KV per replica. 0: no host tier."""

    def __post_init__(self) -> None:
        _check_not_negative(gib=self.gib)


@dataclass(frozen=True, slots=True, kw_only=True)
class DiskTierConfig:
    """A tier in a folder on a local disk, which survives a restart."""

    folder: str = ""
    """The folder; each replica uses its own subfolder of it. Empty: no disk tier."""
    gib: float = 16.0
    """GiB of KV per replica."""
    fsync: bool = False
    """Sync every block to the disk. Not needed for safety: a torn file is recognised."""

    def __post_init__(self) -> None:
        _check_not_negative(gib=self.gib)


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreTierConfig:
    """A tier in a folder or bucket that all replicas share."""

    url: str = ""
    """A folder, or a URL that fsspec knows (`s3://bucket/prefix`). Empty: no store."""
    gib: float = 0.0
    """GiB of the whole store; the oldest blocks are removed first. 0: unbounded, for stores that
    expire objects themselves."""
    is_write_through: bool = True
    """Write every block at once, so that other replicas find it. False: only blocks evicted from
    the tiers above."""

    def __post_init__(self) -> None:
        _check_not_negative(gib=self.gib)


@dataclass(frozen=True, slots=True, kw_only=True)
class TiersConfig:
    """Where KV evicted from a device is kept, and when it is loaded back."""

    host: HostTierConfig = field(default_factory=HostTierConfig)
    disk: DiskTierConfig = field(default_factory=DiskTierConfig)
    store: StoreTierConfig = field(default_factory=StoreTierConfig)
    min_tokens: int = 64
    """The fewest tokens that are loaded from a tier; fewer are recomputed."""
    deadline_s: float = 2.0
    """The most seconds that a prompt waits for KV from the tiers; then it is computed."""
    max_held_blocks: int = 64
    """The most device blocks that may be held back from reuse while they are copied."""
    max_queued_blocks: int = 256
    """The most blocks queued for the disk, and as many for the store; further ones are not
    written."""

    def __post_init__(self) -> None:
        _check_not_negative(min_tokens=self.min_tokens, deadline_s=self.deadline_s)
        for name in ("max_held_blocks", "max_queued_blocks"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, not {getattr(self, name)}")

    @property
    def is_on(self) -> bool:
        return bool(self.host.gib or self.disk.folder or self.store.url)
