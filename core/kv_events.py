"""Events about a replica's prefix cache, from which others know which prompts it need not compute.

    snapshot (all present names)  ->  events 1, 2, 3 ...  ->  snapshot again, after a gap

Events are numbered from 1 without gaps within one incarnation of a replica. A snapshot replaces all
events before `first_sequence`: the next event needed after it has that number. It is read part by
part while the cache changes, so it may already include the effect of later events. Applying those
again is harmless: after the last of them each name is stored or not, as its own last event says.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from baton.core.block_hash import DIGEST_BYTES


class KvChange(StrEnum):
    STORED = "stored"
    EVICTED = "evicted"
    CLEARED = "cleared"
    """All that was stored is gone."""


@dataclass(frozen=True, slots=True)
class KvEvent:
    change: KvChange
    names: bytes = b""
    """Names of the blocks (`baton.core.block_hash`), end to end; none when cleared."""

    def __post_init__(self) -> None:
        if len(self.names) % DIGEST_BYTES:
            raise ValueError(f"{len(self.names)} bytes are no names of {DIGEST_BYTES} bytes each")


@dataclass(frozen=True, slots=True, kw_only=True)
class KvEvents:
    """Changes in the order in which they happened."""

    first_sequence: int
    events: tuple[KvEvent, ...] = ()
    is_snapshot: bool = False
    """`events` then store names that there are, and have no numbers."""
    part: int = 0
    """Number of parts of the snapshot that came before this one; 0 outside a snapshot."""
    has_more: bool = False
    """Whether more parts of the snapshot follow; False outside a snapshot."""

    @property
    def next_sequence(self) -> int:
        return self.first_sequence + (0 if self.is_snapshot else len(self.events))
