"""What another gateway needs to write a resumable stream anew, as a replica keeps it for it.

    begun here:      ParkedRequest -> Parking -> with the request, to the decode replica
    wanted there:    take_stream -> ParkedStream, for the same key; its order says of what kind

The events of a stream follow from the order and its tokens alone, so event k is event k again.
"""

from __future__ import annotations

from collections.abc import Container

import msgspec

from baton.core.messages import ParkedStream
from baton.core.parking import Parking

MAX_ORDER_BYTES = 256 << 10
"""Streams of longer bodies stay with their gateway."""


class ParkedRequest(msgspec.Struct, frozen=True, kw_only=True):
    kind: str
    """The path or the method that opened it."""
    request_id: str
    """The public one."""
    created: int
    """Unix seconds, as the events tell it."""
    headers: dict[str, str] = {}
    """Headers of the request that its answer depends on."""
    body: bytes

    def parking(self, stream_id: str, owner: bytes) -> Parking | None:
        """None if it is too long to be sent along."""
        if len(self.body) > MAX_ORDER_BYTES:
            return None
        return Parking(stream_id, owner, msgspec.msgpack.encode(self), self.kind)


def order_of(parked: ParkedStream | None, *, kinds: Container[str]) -> ParkedRequest | None:
    """None if there is none, it is of another kind, or of a version that we cannot read."""
    if parked is None or parked.request.parking is None:
        return None
    try:
        order = msgspec.msgpack.decode(parked.request.parking.order, type=ParkedRequest)
    except (msgspec.DecodeError, ValueError):
        return None
    return order if order.kind in kinds else None
