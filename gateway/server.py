"""A gateway's HTTP, gRPC and admin ports, from start to drain to stop.

start -> ready -> begin_drain (unready; requests are still served) -> stop (the last ones finish)
"""

from __future__ import annotations

import asyncio
import socket

from baton.core.chaos import Chaos
from baton.core.clock import Clock, monotonic
from baton.gateway.access.config import GatewayConfig
from baton.gateway.access.connections import admin_connections, public_connections
from baton.gateway.access.rate_limits import RateLimits
from baton.gateway.access.tls import tls_identity
from baton.gateway.batches.service import batch_service
from baton.gateway.grpc.server import GrpcServer
from baton.gateway.http.app import build_admin_app, build_app
from baton.gateway.http.batching.line_calls import LineCalls
from baton.gateway.http.port.server import HttpServer, bind
from baton.gateway.http.responses.background import BackgroundResponses
from baton.gateway.http.responses.kept import KeptResponses
from baton.gateway.requests.gateway import Gateway
from baton.gateway.requests.generations.generation import Dispatcher
from baton.gateway.requests.readiness import NOBODY, Wanted
from baton.gateway.requests.reporting import SILENT, Reporting
from baton.gateway.text.served_model import ServedModel


class GatewayServer:
    """Plain Python on purpose: `platform/cluster/gateway_actor.py` turns it into a deployment."""

    def __init__(  # noqa: PLR0913 - one parameter a collaborator
        self,
        *,
        model: ServedModel,
        dispatcher: Dispatcher,
        config: GatewayConfig,
        wanted: Wanted = NOBODY,
        reporting: Reporting = SILENT,
        chaos: Chaos | None = None,
        clock: Clock = monotonic,
    ) -> None:
        """Raises InvalidConfig if the certificate or its key cannot be used."""
        self._gateway = Gateway(
            model=model,
            dispatcher=dispatcher,
            config=config,
            wanted=wanted,
            reporting=reporting,
            chaos=chaos,
            clock=clock,
        )
        tls = tls_identity(config)
        refused = self._gateway.metrics.refused_connections
        public, admin = public_connections(config, refused), admin_connections(refused)
        self._background = BackgroundResponses(
            KeptResponses(self._gateway),
            num_owners=lambda: self._gateway.keys.num_owners,
            clock=clock,
        )
        answer_line = LineCalls(self._gateway, self._background)
        self._batches = batch_service(self._gateway, answer_line)
        app = build_app(self._gateway, self._background, self._batches)
        self._http = HttpServer(app, config, public, tls=tls)
        self._admin = HttpServer(build_admin_app(self._gateway), config, admin, tls=tls)
        self._grpc = GrpcServer(self._gateway, public, tls=tls)

    @property
    def limits(self) -> RateLimits:
        """The rate limits of tenants; each of several gateways has a share."""
        return self._gateway.limits

    def is_ready(self) -> bool:
        return self._gateway.is_ready()

    def metrics_page(self) -> str:
        """The metrics page, for Prometheus."""
        return self._gateway.metrics_page()

    @property
    def http_port(self) -> int:
        """The bound one, once started."""
        return self._http.port

    @property
    def grpc_port(self) -> int:
        """The bound one, once started."""
        return self._grpc.port

    @property
    def admin_port(self) -> int:
        """The bound admin port; 0 while there is none."""
        return self._admin.port

    def reconfigure(self, config: GatewayConfig, wanted: Wanted) -> None:
        """See `Gateway.reconfigure`. Ports and file names stay as at the start."""
        self._gateway.reconfigure(config, wanted)

    async def start(self) -> None:
        """Raises OSError or RuntimeError if a port cannot be bound; then nothing stays bound."""
        config = self._gateway.config
        if self._gateway.storage is not None:
            await self._gateway.storage.start()
        await self._http.start(bind(config.host, config.port))
        try:
            await self._grpc.start()
        except BaseException:
            await self._http.stop(0)
            raise
        if self._batches is not None:
            self._batches.runner.start()

    async def open_admin(self, listener: socket.socket) -> None:
        """Serve the admin port on `listener`, which no other gateway shares."""
        await self._admin.start(listener)

    async def begin_drain(self) -> None:
        """Turn unready, so that balancers look elsewhere. Safe to repeat."""
        self._gateway.is_draining = True
        self._grpc.report_health()

    async def stop(self, grace_s: float) -> None:
        """Close the ports and return when all requests have ended; cancel them after `grace_s`."""
        await self.begin_drain()
        if self._batches is not None:  # other gateways may take them over
            await self._batches.runner.stop()
        await asyncio.gather(
            self._http.stop(grace_s), self._grpc.stop(grace_s), self._background.close(grace_s)
        )
        await self._background.close(0)  # background work that the last requests have begun
        await self._admin.stop(0)  # open until the end, to show what is still running
        self._gateway.dispatcher.leave()
        await self._gateway.keeper.close()
        if self._batches is not None:
            self._batches.close()
        if self._gateway.storage is not None:
            await self._gateway.storage.close()
        await asyncio.to_thread(self._gateway.tracer.close)
