"""What an operator may set about tiers. Frozen; a wrong value raises ValueError naming it.

    tiers:
      host: {gib: 8}                                  off unless it is given a size
      disk: {folder: /var/cache/baton, gib: 200}      off unless it is given a folder
      store: {url: s3://bucket/kv}                    off unless it is given a URL

One branch for both pools: where KV goes when it leaves a device is a fact of the machines, not of a
role. Sizes are per replica, but for the store, which all replicas share.
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
    """Memory of the host, private to a replica and gone with it."""

    gib: float = 0.0
    """GiB of KV per replica. 0: no host tier."""

    def __post_init__(self) -> None:
        _check_not_negative(gib=self.gib)


@dataclass(frozen=True, slots=True, kw_only=True)
class DiskTierConfig:
    """A folder on a disk of this machine; what it holds is found again after a restart."""

    folder: str = ""
    """Replicas may share it: each takes a subfolder of its own. Empty: no disk tier."""
    gib: float = 16.0
    """GiB of KV per replica."""
    fsync: bool = False
    """Wait for the disk at every block. Not needed to be safe: a torn file is recognised."""

    def __post_init__(self) -> None:
        _check_not_negative(gib=self.gib)


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreTierConfig:
    """A folder or bucket that all replicas share."""

    url: str = ""
    """A folder, or whatever fsspec knows (`s3://bucket/prefix`). Empty: no store."""
    gib: float = 0.0
    """All in all; the oldest go first. 0: unbounded, for stores that expire objects themselves."""
    is_write_through: bool = True
    """Write every block at once, so that other replicas find it. False: only what overflows."""

    def __post_init__(self) -> None:
        _check_not_negative(gib=self.gib)


@dataclass(frozen=True, slots=True, kw_only=True)
class TiersConfig:
    """Where KV goes that leaves a device, and when it is worth bringing back."""

    host: HostTierConfig = field(default_factory=HostTierConfig)
    disk: DiskTierConfig = field(default_factory=DiskTierConfig)
    store: StoreTierConfig = field(default_factory=StoreTierConfig)
    min_tokens: int = 64
    """Least tokens that are brought back rather than computed."""
    deadline_s: float = 2.0
    """A prompt waits no longer than this for KV from the tiers, then it is computed."""
    max_held_blocks: int = 64
    """Blocks of the device that may be kept from reuse at once while they are copied."""
    max_queued_blocks: int = 256
    """Blocks waiting to be written to the disk, and as many to the store; more are not written."""

    def __post_init__(self) -> None:
        _check_not_negative(min_tokens=self.min_tokens, deadline_s=self.deadline_s)
        for name in ("max_held_blocks", "max_queued_blocks"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, not {getattr(self, name)}")

    @property
    def is_on(self) -> bool:
        return bool(self.host.gib or self.disk.folder or self.store.url)
