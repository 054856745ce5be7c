"""What another gateway needs to write a resumable stream anew, as a replica keeps it for it.

    begun here:      ParkedOrder -> Parking -> with the request, to the decode replica
    wanted there:    take_stream -> ParkedStream, whose order it checks: the same key, the same kind

The events of a stream follow from the order and its tokens alone, so event k is event k again.
"""

from __future__ import annotations

import hmac
from collections.abc import Container

import msgspec

from baton.core.messages import ParkedStream, Parking

MAX_ORDER_BYTES = 256 << 10
"""Streams of longer bodies stay with their gateway."""


class ParkedOrder(msgspec.Struct, frozen=True, kw_only=True):
    kind: str
    """The path or the method that opened it."""
    owner: bytes
    """See `owner_of`."""
    request_id: str
    """The public one."""
    created: int
    """Unix seconds, as the events tell it."""
    headers: dict[str, str] = {}
    """Those of the request that its answer depends on."""
    body: bytes

    def parking(self, stream_id: str) -> Parking | None:
        """None if it is too long to be sent along."""
        if len(self.body) > MAX_ORDER_BYTES:
            return None
        return Parking(stream_id, msgspec.msgpack.encode(self))


def order_of(
    parked: ParkedStream | None, *, owner: bytes, kinds: Container[str]
) -> ParkedOrder | None:
    """None if there is none, it is somebody else's, or of a version that we cannot read."""
    if parked is None or parked.request.parking is None:
        return None
    try:
        order = msgspec.msgpack.decode(parked.request.parking.order, type=ParkedOrder)
    except (msgspec.DecodeError, ValueError):
        return None
    is_theirs = hmac.compare_digest(order.owner, owner) and order.kind in kinds
    return order if is_theirs else None
