"""The gRPC port: the Inference service, with standard health checks and reflection."""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Awaitable, Callable
from typing import Any

from google.protobuf.message import DecodeError
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection

import grpc.aio
from baton.core.errors import InvalidRequest
from baton.gateway.access.connections import num_affordable
from baton.gateway.access.tls import TlsIdentity
from baton.gateway.grpc.errors import grpc_status
from baton.gateway.grpc.service import InferenceService
from baton.gateway.requests.gateway import Gateway
from baton.proto import inference_pb2 as pb
from baton.proto.inference_pb2_grpc import add_InferenceServicer_to_server
from baton.proto.lasting_server import lasting_server

Behaviour = Callable[[Any, grpc.aio.ServicerContext[Any, Any]], Awaitable[Any]]


class RefuseMalformed(grpc.aio.ServerInterceptor):
    """Answers INVALID_ARGUMENT to requests that cannot be parsed; streams of them pass as is.

    gRPC's own answer is UNKNOWN, as for a bug of the server, in the words of its Python classes.
    """

    async def intercept_service(
        self,
        continuation: Callable[
            [grpc.HandlerCallDetails], Awaitable[grpc.RpcMethodHandler[Any, Any] | None]
        ],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> grpc.RpcMethodHandler[Any, Any] | None:
        handler: Any = await continuation(handler_call_details)
        if handler is None or handler.request_streaming or handler.request_deserializer is None:
            return handler  # type: ignore[no-any-return]
        kind = "unary_stream" if handler.response_streaming else "unary_unary"
        behaviour = _parsing(getattr(handler, kind), handler.request_deserializer)
        return handler._replace(  # type: ignore[no-any-return]
            request_deserializer=None, **{kind: behaviour}
        )


def _parsing(behaviour: Behaviour, parse: Callable[[bytes], Any]) -> Behaviour:
    async def parse_and_call(data: bytes, context: grpc.aio.ServicerContext[Any, Any]) -> Any:
        try:
            request = parse(data)
        except DecodeError:
            status = grpc_status(InvalidRequest("the request is not a message of its type"))
            await context.abort(status.code, status.details, status.trailing_metadata)
        return await behaviour(request, context)

    return parse_and_call


STRANGERS_WORDS = (
    "Invalid encoding on",  # metadata that are no text
    "ExecuteBatchError raised in core by servicer method",  # a client that left while answered
)


class WithoutStrangersWords(logging.Filter):
    """Keeps out of the log what clients can make gRPC say as errors, with a trace each."""

    def filter(self, record: logging.LogRecord) -> bool:
        return not record.getMessage().startswith(STRANGERS_WORDS)


logging.getLogger("grpc._cython.cygrpc").addFilter(WithoutStrangersWords())

SERVICE: str = pb.DESCRIPTOR.services_by_name["Inference"].full_name
HEALTH_PERIOD_S = 0.5


class GrpcServer:
    def __init__(self, gateway: Gateway, *, tls: TlsIdentity | None = None) -> None:
        self._gateway = gateway
        self._tls = tls
        self._health = health.aio.HealthServicer()
        self._server: grpc.aio.Server | None = None
        self._watch: asyncio.Task[None] | None = None
        self.port = 0
        """The bound one, once started."""

    async def start(self) -> None:
        """Raises RuntimeError if the port cannot be bound."""
        config = self._gateway.config
        host = f"[{config.host}]" if ":" in config.host else config.host
        server = lasting_server(
            interceptors=(RefuseMalformed(),),
            options=(
                ("grpc.so_reuseport", 1),  # a successor starts beside this gateway
                ("grpc.max_receive_message_length", config.max_body_bytes),
                ("grpc.max_send_message_length", -1),
                ("grpc.http2.min_ping_interval_without_data_ms", 500),
                ("grpc.http2.max_ping_strikes", 0),
                ("grpc.max_allowed_incoming_connections", num_affordable(config.max_connections)),
                ("grpc.max_concurrent_streams", config.max_streams_per_connection),
                ("grpc.max_connection_idle_ms", config.keep_alive_s * 1000),
                ("grpc.server_handshake_timeout_ms", math.ceil(config.header_timeout_s * 1000)),
            ),
        )
        add_InferenceServicer_to_server(InferenceService(self._gateway), server)
        health_pb2_grpc.add_HealthServicer_to_server(self._health, server)
        names = (SERVICE, health.SERVICE_NAME, reflection.SERVICE_NAME)
        reflection.enable_server_reflection(names, server)
        address = f"{host}:{config.grpc_port}"
        if self._tls is None:
            self.port = server.add_insecure_port(address)
        else:
            self.port = server.add_secure_port(
                address, grpc.ssl_server_credentials([self._tls.read()])
            )
        await self.report_health()
        await server.start()
        self._server = server
        self._watch = asyncio.create_task(self._keep_reporting())

    async def report_health(self) -> None:
        status = health_pb2.HealthCheckResponse.ServingStatus
        value = status.SERVING if self._gateway.is_ready() else status.NOT_SERVING
        for name in ("", SERVICE):
            await self._health.set(name, value)

    async def stop(self, grace_s: float) -> None:
        """Accept nothing more, and return when all requests have ended, at most after `grace_s`."""
        if self._watch is not None:
            self._watch.cancel()
            await asyncio.gather(self._watch, return_exceptions=True)
        if self._server is not None:
            await self._server.stop(grace_s)

    async def _keep_reporting(self) -> None:
        while True:
            await asyncio.sleep(HEALTH_PERIOD_S)
            await self.report_health()
