"""What operators, probes and Prometheus read."""

from __future__ import annotations

from typing import Literal

import msgspec
from prometheus_client import CONTENT_TYPE_PLAIN_0_0_4
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response

from baton.platform.gateway.gateway import Gateway
from baton.platform.gateway.http.errors import json_response


class HealthAnswer(msgspec.Struct, kw_only=True):
    status: Literal["ok"] = "ok"


class ReadyAnswer(msgspec.Struct, kw_only=True, omit_defaults=True):
    status: Literal["ready", "not ready"]
    reason: str | None = None


class StatusPages:
    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway

    async def health(self, request: Request) -> Response:
        """Alive: this process answers."""
        return json_response(HealthAnswer())

    async def ready(self, request: Request) -> Response:
        """Can take a request: not draining, and a decode replica is connected."""
        if self._gateway.is_ready():
            return json_response(ReadyAnswer(status="ready"))
        reason = "draining" if self._gateway.is_draining else "no decode replica is connected"
        return json_response(ReadyAnswer(status="not ready", reason=reason), status=503)

    async def proxy_health(self, request: Request) -> Response:
        """As Ray Serve's proxy answers KubeRay's probes."""
        if self._gateway.is_draining:
            return PlainTextResponse("draining", 503)
        return PlainTextResponse("success")

    async def proxy_routes(self, request: Request) -> Response:
        return json_response({"/": "baton"})

    async def metrics(self, request: Request) -> Response:
        text = self._gateway.metrics.text() + await self._gateway.dispatcher.metrics_text()
        return Response(text, headers={"content-type": CONTENT_TYPE_PLAIN_0_0_4})

    async def leaks(self, request: Request) -> Response:
        return json_response(await self._gateway.dispatcher.leaks())

    async def status(self, request: Request) -> Response:
        return json_response(await self._gateway.dispatcher.status())
