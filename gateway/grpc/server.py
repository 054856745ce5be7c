"""The gRPC port: the Inference service, with standard health checks and reflection."""

from __future__ import annotations

import asyncio
import math

from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection

import grpc.aio
from baton.gateway.access.connections import Connections, num_affordable
from baton.gateway.access.tls import TlsIdentity
from baton.gateway.grpc.call_timeouts import CallTimeouts
from baton.gateway.grpc.health import Health
from baton.gateway.grpc.incoming import BeginAtOnce
from baton.gateway.grpc.service import InferenceService
from baton.gateway.requests.gateway import Gateway
from baton.proto import inference_pb2 as pb
from baton.proto.inference_pb2_grpc import add_InferenceServicer_to_server
from baton.proto.lasting_server import lasting_server

HEALTH: str = health_pb2.DESCRIPTOR.services_by_name["Health"].full_name
SERVICE: str = pb.DESCRIPTOR.services_by_name["Inference"].full_name
HEALTH_PERIOD_S = 0.5
SETTLING_S = 1.0
"""Seconds for a call that arrived just before the end to begin."""


class GrpcServer:
    def __init__(
        self, gateway: Gateway, connections: Connections, *, tls: TlsIdentity | None = None
    ) -> None:
        """`connections` counts clients that are cut off here; the limit of open ones is gRPC's
        own."""
        self._gateway = gateway
        self._timeouts = CallTimeouts(gateway, connections)
        self._tls = tls
        self._health = Health(("", SERVICE), self._timeouts)
        self._server: grpc.aio.Server | None = None
        self._watch: asyncio.Task[None] | None = None
        self.port = 0
        """The bound port, once started."""

    async def start(self) -> None:
        """Raises RuntimeError if the port cannot be bound."""
        config = self._gateway.config
        host = f"[{config.host}]" if ":" in config.host else config.host
        server = lasting_server(
            interceptors=(BeginAtOnce(self._timeouts),),
            options=(
                ("grpc.so_reuseport", 1),  # a successor may bind the same port
                ("grpc.max_receive_message_length", config.max_body_bytes),
                ("grpc.max_send_message_length", -1),
                ("grpc.http2.min_ping_interval_without_data_ms", 500),
                ("grpc.http2.max_ping_strikes", 0),
                ("grpc.max_allowed_incoming_connections", num_affordable(config.max_connections)),
                ("grpc.max_concurrent_streams", config.max_streams_per_connection),
                ("grpc.max_connection_idle_ms", config.keep_alive_s * 1000),
                ("grpc.keepalive_time_ms", config.keep_alive_s * 1000),  # while calls are open
                ("grpc.http2.ping_timeout_ms", math.ceil(config.unread_timeout_s * 2000)),
                ("grpc.server_handshake_timeout_ms", math.ceil(config.header_timeout_s * 1000)),
            ),
        )
        add_InferenceServicer_to_server(InferenceService(self._timeouts), server)
        health_pb2_grpc.add_HealthServicer_to_server(self._health, server)
        names = (SERVICE, HEALTH, reflection.SERVICE_NAME)
        reflection.enable_server_reflection(names, server)
        address = f"{host}:{config.grpc_port}"
        if self._tls is None:
            self.port = server.add_insecure_port(address)
        else:
            self.port = server.add_secure_port(address, _credentials(self._tls))
        self.report_health()
        await server.start()
        self._server = server
        self._watch = asyncio.create_task(self._keep_reporting())

    def report_health(self) -> None:
        self._health.report(is_serving=self._gateway.is_ready())

    async def stop(self, grace_s: float) -> None:
        """Accept nothing more, and return when all requests have ended, at most after `grace_s`.
        Calls that were given up are not awaited; unread answers for `unread_timeout_s` at most;
        requests that have yet to arrive only shortly.
        """
        if self._watch is not None:
            self._watch.cancel()
            await asyncio.gather(self._watch, return_exceptions=True)
        self._health.close()
        if self._server is not None:
            await self._close(self._server, grace_s)

    async def _close(self, server: grpc.aio.Server, grace_s: float) -> None:
        calls, limit_s = self._timeouts.calls, self._gateway.config.unread_timeout_s
        calls.leave()
        closing = asyncio.create_task(server.stop(grace_s))
        while not closing.done():
            idle = asyncio.create_task(calls.wait_until_idle())
            await asyncio.wait((closing, idle), return_when=asyncio.FIRST_COMPLETED)
            idle.cancel()
            left_s = max(SETTLING_S, limit_s - (calls.idle_s or 0.0))
            await asyncio.wait((closing,), timeout=left_s)
            if calls.idle_s is not None:
                await server.stop(None)
        await closing

    async def _keep_reporting(self) -> None:
        while True:
            await asyncio.sleep(HEALTH_PERIOD_S)
            self.report_health()


def _credentials(tls: TlsIdentity) -> grpc.ServerCredentials:
    def identity() -> grpc.ServerCertificateConfiguration:
        """The certificate and key; called at every handshake."""
        return grpc.ssl_server_certificate_configuration([tls.pem()])

    return grpc.dynamic_ssl_server_credentials(identity(), identity)
