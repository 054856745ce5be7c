"""Endpoints for operators, probes and Prometheus."""

from __future__ import annotations

import asyncio
import logging
from typing import Annotated, Literal

import msgspec
from msgspec import structs
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response

from baton.core.chaos import LAST_WORDS_S, ChaosRule
from baton.core.errors import Forbidden
from baton.core.ids import new_epoch
from baton.core.metrics import CONTENT_TYPE
from baton.gateway.http.errors import json_response
from baton.gateway.http.request_body import decode_body, read_body
from baton.gateway.requests.gateway import Gateway
from baton.gateway.requests.readiness import Missing

log = logging.getLogger(__name__)


class HealthAnswer(msgspec.Struct, kw_only=True):
    status: Literal["ok"] = "ok"


class ReadyAnswer(msgspec.Struct, kw_only=True, omit_defaults=True):
    status: Literal["ready", "not ready"]
    reason: str | None = None
    missing: tuple[Missing, ...] = ()
    """Roles with fewer ready replicas than wanted. Requests may be accepted nevertheless."""


class DrainBody(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    replica: str
    """Its id, as /debug/status shows it."""
    force: bool = False
    """Drain it even if it is the last decode replica that accepts requests."""


class UndrainBody(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    replica: str
    """Its id, as /debug/status shows it."""


class FlipBody(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    replica: str
    """Its id, as /debug/status shows it; or a role, for its least loaded replica."""
    to: str
    """The role to take: prefill or decode."""


class ResetPrefixCacheBody(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    replica: str = ""
    """Its id, as /debug/status shows it; empty: all replicas."""


class ResetPrefixCacheAnswer(msgspec.Struct, kw_only=True):
    num_blocks: dict[str, int]
    """Cached blocks that each replica dropped."""


class ChaosBody(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    do: Literal["kill"] | None = None
    """kill -9, as `baton chaos` kills replicas."""
    rules: tuple[ChaosRule, ...] | None = None
    """Faults that this gateway injects from now on, in place of the previous ones; empty: none."""
    seed: Annotated[int, msgspec.Meta(ge=0)] = 0
    """Seed of the faults' random choices."""


class ChaosAnswer(msgspec.Struct, kw_only=True):
    gateway: str
    """The name of this gateway process: several may share a port, and each has its own faults."""
    is_killed: bool
    num_faults: int
    """Faults injected so far."""


class DrainAnswer(msgspec.Struct, kw_only=True):
    replica: str
    role: str
    """Its current role."""
    num_open: int
    """Requests that have yet to leave; ask again until there are none."""


class StatusPages:
    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway
        self._process = new_epoch()

    async def health(self, request: Request) -> Response:
        """Liveness: this process answers."""
        return json_response(HealthAnswer())

    async def ready(self, request: Request) -> Response:
        """Readiness: not draining; a decode replica accepts requests or is started for waiting
        ones; and the replicas' caches are known."""
        missing = self._gateway.missing()
        if self._gateway.config.needs_key:  # probes have no key
            missing = tuple(structs.replace(it, causes=()) for it in missing)
        if self._gateway.is_ready():
            return json_response(ReadyAnswer(status="ready", missing=missing))
        is_draining = self._gateway.is_draining
        reason = "the gateway is draining" if is_draining else self._gateway.dispatcher.trouble()
        answer = ReadyAnswer(status="not ready", reason=reason, missing=missing)
        return json_response(answer, status=503)

    async def proxy_health(self, request: Request) -> Response:
        """Answers KubeRay's probes as Ray Serve's proxy does."""
        if self._gateway.is_draining:
            return PlainTextResponse("draining", 503)
        return PlainTextResponse("success")

    async def proxy_routes(self, request: Request) -> Response:
        return json_response({"/": "baton"})

    async def metrics(self, request: Request) -> Response:
        page = self._gateway.metrics_page()
        return Response(page, headers={"content-type": CONTENT_TYPE})

    async def leaks(self, request: Request) -> Response:
        return json_response(await self._gateway.dispatcher.leaks())

    async def drain(self, request: Request) -> Response:
        body = decode_body(await read_body(request, self._gateway.config), DrainBody)
        progress = await self._gateway.dispatcher.drain(body.replica, is_forced=body.force)
        return json_response(msgspec.convert(progress, DrainAnswer))

    async def undrain(self, request: Request) -> Response:
        body = decode_body(await read_body(request, self._gateway.config), UndrainBody)
        progress = await self._gateway.dispatcher.undrain(body.replica)
        return json_response(msgspec.convert(progress, DrainAnswer))

    async def flip(self, request: Request) -> Response:
        body = decode_body(await read_body(request, self._gateway.config), FlipBody)
        progress = await self._gateway.dispatcher.flip(body.replica, body.to)
        return json_response(msgspec.convert(progress, DrainAnswer))

    async def reset_prefix_cache(self, request: Request) -> Response:
        body = await read_body(request, self._gateway.config)
        asked = decode_body(body or b"{}", ResetPrefixCacheBody)
        num_blocks = await self._gateway.dispatcher.reset_prefix_cache(asked.replica)
        return json_response(ResetPrefixCacheAnswer(num_blocks=num_blocks))

    async def chaos(self, request: Request) -> Response:
        """Set this process's faults, or kill it, if the deployment enables chaos."""
        body = decode_body(await read_body(request, self._gateway.config), ChaosBody)
        chaos = self._gateway.chaos
        if chaos is None:
            raise Forbidden("fault injection is off in this deployment; set chaos.enabled")
        if body.rules is not None:
            if body.rules != chaos.rules:
                log.warning("CHAOS: this gateway obeys %d rules", len(body.rules))
            chaos.set(body.rules, body.seed)
        is_killed = body.do == "kill"
        if is_killed:
            log.warning("CHAOS: this gateway ends at once")
            asyncio.get_running_loop().call_later(LAST_WORDS_S, chaos.kill)
        return json_response(
            ChaosAnswer(
                gateway=self._process,
                is_killed=is_killed,
                num_faults=chaos.injected.total(),
            )
        )

    async def status(self, request: Request) -> Response:
        return json_response(await self._gateway.dispatcher.status())

    async def planner(self, request: Request) -> Response:
        """The planner's recent decisions, with reasons."""
        planner = self._gateway.planner
        return json_response({"is_enabled": False} if planner is None else await planner.explain())
