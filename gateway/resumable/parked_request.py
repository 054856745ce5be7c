"""The state by which another gateway can rewrite a resumable stream; parked at a replica.

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
"""Streams with longer bodies cannot move to another gateway."""


class ParkedRequest(msgspec.Struct, frozen=True, kw_only=True):
    kind: str
    """The path or the method that opened it."""
    request_id: str
    """The public one."""
    created: int
    """Unix seconds, as in the events."""
    headers: dict[str, str] = {}
    """Request headers on which the answer depends."""
    body: bytes

    def parking(self, stream_id: str, owner: bytes) -> Parking | None:
        """The parking data; None if it is too long."""
        if len(self.body) > MAX_ORDER_BYTES:
            return None
        return Parking(stream_id, owner, msgspec.msgpack.encode(self), self.kind)


def order_of(parked: ParkedStream | None, *, kinds: Container[str]) -> ParkedRequest | None:
    """The parked request; None if there is none, or of another kind, or of an unreadable
    version."""
    if parked is None or parked.request.parking is None:
        return None
    try:
        order = msgspec.msgpack.decode(parked.request.parking.order, type=ParkedRequest)
    except (msgspec.DecodeError, ValueError):
        return None
    return order if order.kind in kinds else None
