"""The cluster's token: a call between our own processes that does not carry it is refused.

Over TLS it keeps out whoever else can reach a port. Over plain text it can be read on the way, and
is only a guard against mixing up clusters.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from hmac import compare_digest
from typing import Any

import grpc
import grpc.aio

from baton.core.wire_security import NO_TOKEN, WireSecurity

TOKEN_KEY = "baton-cluster-token"
REFUSAL = (
    "refused: this call does not carry the cluster token of this replica; give every process of "
    "the cluster the same one (security.token_file, the variable BATON_CLUSTER_TOKEN, or Ray's own "
    "token, from which it is derived: security.default_token)"
)

_Context = grpc.aio.ServicerContext[Any, Any]


class ClusterTokenInterceptor(grpc.aio.ServerInterceptor):
    """Before any work is done. Without a token of its own a server refuses calls that carry one:
    who calls takes it for somebody else."""

    def __init__(self, security: WireSecurity) -> None:
        self._security = security
        self.num_refused = 0

    async def intercept_service(
        self,
        continuation: Callable[
            [grpc.HandlerCallDetails], Awaitable[grpc.RpcMethodHandler[Any, Any] | None]
        ],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> grpc.RpcMethodHandler[Any, Any] | None:
        given = _given(handler_call_details)
        # No `any`: how long it takes must not say which of them came close.
        accepted = [compare_digest(given, token.encode()) for token in self._accepted()]
        if True in accepted:
            return await continuation(handler_call_details)
        self.num_refused += 1
        return grpc.stream_stream_rpc_method_handler(_refuse)

    def _accepted(self) -> tuple[str, ...]:
        return self._security.now().tokens or (NO_TOKEN,)


def _given(details: grpc.HandlerCallDetails) -> bytes:
    for key, value in details.invocation_metadata or ():
        if key == TOKEN_KEY:
            return value.encode() if isinstance(value, str) else value
    return NO_TOKEN.encode()


async def _refuse(requests: AsyncIterator[Any], context: _Context) -> AsyncIterator[Any]:
    """Answers any kind of call: on the wire they are all streams."""
    await context.abort(grpc.StatusCode.UNAUTHENTICATED, REFUSAL)
    yield  # it never comes so far; it makes this a stream
