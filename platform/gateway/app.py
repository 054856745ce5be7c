"""The OpenAI-compatible HTTP face: which path goes where."""

from __future__ import annotations

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.routing import Route

from baton.core.errors import BatonError
from baton.platform.gateway.chat import ChatApi
from baton.platform.gateway.completions import CompletionsApi
from baton.platform.gateway.edge import Edge
from baton.platform.gateway.gateway import Gateway
from baton.platform.gateway.http_errors import (
    on_baton_error,
    on_internal_error,
    on_routing_error,
)
from baton.platform.gateway.models import ModelsApi
from baton.platform.gateway.status_pages import StatusPages


def build_app(gateway: Gateway) -> Starlette:
    models, pages = ModelsApi(gateway), StatusPages(gateway)
    app = Starlette(
        routes=[
            Route("/v1/completions", CompletionsApi(gateway).create, methods=["POST"]),
            Route("/v1/chat/completions", ChatApi(gateway).create, methods=["POST"]),
            Route("/v1/models", models.list_all),
            Route("/v1/models/{model_id:path}", models.get),
            Route("/health", pages.health),
            Route("/ready", pages.ready),
            Route("/-/healthz", pages.proxy_health),
            Route("/-/routes", pages.proxy_routes),
            Route("/metrics", pages.metrics),
            Route("/debug/leaks", pages.leaks),
            Route("/debug/status", pages.status),
        ],
        middleware=[Middleware(Edge, gateway=gateway)],
        exception_handlers={
            BatonError: on_baton_error,
            HTTPException: on_routing_error,
            Exception: on_internal_error,
        },
    )
    app.router.redirect_slashes = False
    return app
