"""Names and keys of parked streams, with which they are found when their gateway is gone.

A decode replica keeps what a gateway stored, and hands it to a caller with the same key.
"""

from __future__ import annotations

import hmac
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Parking:
    stream_id: str
    owner: bytes
    """The digest of the API key that may take the stream; the digest itself lets nobody in."""
    order: bytes
    """Gateways' own: what it takes to write the stream anew."""
    kind: str = ""
    """The path or the method that opened it."""


@dataclass(frozen=True, slots=True)
class TakeStream:
    """Gateway -> every D: the stream is to go on here."""

    stream_id: str
    owner: bytes
    kinds: tuple[str, ...] = ()
    """It is wanted if it is one of these; none: any."""
    is_end: bool = False
    """It is to go on nowhere: nobody wants more of it."""

    def is_for(self, parking: Parking | None) -> bool:
        return (
            parking is not None
            and parking.stream_id == self.stream_id
            and hmac.compare_digest(parking.owner, self.owner)
            and (not self.kinds or parking.kind in self.kinds)
        )
