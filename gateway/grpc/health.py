"""gRPC's standard health checks, which need no key and which no client can block.

grpc_health's own servicer writes to each watcher under the lock that a change of health needs, so a
watcher that does not read would keep a gateway from draining.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

from grpc_health.v1.health_pb2 import HealthCheckRequest, HealthCheckResponse
from grpc_health.v1.health_pb2_grpc import HealthServicer

import grpc
from baton.gateway.grpc.call_timeouts import CallTimeouts, Context
from baton.gateway.grpc.incoming import IncomingRequest


class Health(HealthServicer):  # type: ignore[misc]  # without types
    """One health for a set of services."""

    def __init__(self, services: Iterable[str], timeouts: CallTimeouts) -> None:
        self._services = frozenset(services)
        self._timeouts = timeouts
        self._is_serving = self._is_closed = False
        self._changed = asyncio.Event()

    def report(self, *, is_serving: bool) -> None:
        if is_serving != self._is_serving:
            self._is_serving = is_serving
            self._wake()

    def close(self) -> None:
        """Report NOT_SERVING to all watchers, and end their calls."""
        self._is_serving, self._is_closed = False, True
        self._wake()

    def _wake(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()

    async def Check(
        self, request: IncomingRequest[HealthCheckRequest], context: Context
    ) -> HealthCheckResponse:
        service = (await request.read_unauthenticated()).service
        if service not in self._services:
            await context.abort(grpc.StatusCode.NOT_FOUND, "there is no such service")
        return self._response(service)

    async def Watch(self, request: IncomingRequest[HealthCheckRequest], context: Context) -> None:
        service = (await request.read_unauthenticated()).service
        last = None
        while True:
            changed, is_last = (
                self._changed,
                self._is_closed,
            )  # before the write, which takes a while
            response = self._response(service)
            if response != last:
                await self._timeouts.write(context, response)
                last = response
            if is_last:
                return
            await changed.wait()

    def _response(self, service: str) -> HealthCheckResponse:
        status = HealthCheckResponse.ServingStatus
        if service not in self._services:
            return HealthCheckResponse(status=status.SERVICE_UNKNOWN)
        is_serving = self._is_serving
        return HealthCheckResponse(status=status.SERVING if is_serving else status.NOT_SERVING)
