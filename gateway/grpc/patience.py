"""How long gRPC's clients are waited for: for their requests, and to take responses.

gRPC shows neither connections nor how much of a message has come or was taken: whole messages are
timed. Who is too slow is counted with the connections of the HTTP ports.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any
from urllib.parse import unquote

import grpc.aio
from baton.core.errors import Cancelled, RequestTooSlow
from baton.gateway.access.connections import Connections, Refusal
from baton.gateway.requests.gateway import Gateway

Context = grpc.aio.ServicerContext[Any, Any]


@dataclass(frozen=True, slots=True)
class Patience:
    gateway: Gateway
    connections: Connections

    async def read(
        self, messages: AsyncIterator[bytes], context: Context, limit_s: float
    ) -> bytes | None:
        """The next one; None where none comes any more. Raises RequestTooSlow if it is late."""
        try:
            async with asyncio.timeout(limit_s):
                return await anext(messages, None)
        except TimeoutError as error:
            self.connections.refuse(Refusal.LATE_REQUEST, address_of(context))
            raise RequestTooSlow(f"the request did not arrive within {limit_s:g} s") from error

    async def write(self, context: Context, response: object) -> None:
        """Raises Cancelled if it is not taken."""
        limit_s = self.gateway.config.unread_timeout_s
        try:
            async with asyncio.timeout(limit_s):
                await context.write(response)
        except TimeoutError as error:
            self.connections.refuse(Refusal.UNREAD, address_of(context))
            raise Cancelled(f"the client has read nothing for {limit_s:g} s") from error


def address_of(context: Context) -> str:
    """Of the client. gRPC has it as `ipv4:10.0.0.1:5`, or `ipv6:%5B::1%5D:5`."""
    _, _, rest = unquote(context.peer()).partition(":")
    return rest.rpartition(":")[0].strip("[]")
