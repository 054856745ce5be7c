"""The routes of the public port, compatible with OpenAI's and Anthropic's APIs, and of the admin
port.
"""

from __future__ import annotations

from collections.abc import Sequence

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.routing import Route

from baton.core.errors import BatonError
from baton.gateway.batches.service import BatchService
from baton.gateway.http.batching.batches import BatchesApi
from baton.gateway.http.batching.files import FilesApi
from baton.gateway.http.batching.message_batches import MessageBatchesApi
from baton.gateway.http.completions.chat import ChatApi
from baton.gateway.http.completions.completions import CompletionsApi
from baton.gateway.http.completions.tool_format import TOOL_FORMAT, TOOL_SCHEMAS
from baton.gateway.http.decisions import DecisionsApi
from baton.gateway.http.edge import (
    ANTHROPICS_REQUEST_ID,
    CLASSIFY_PATHS,
    IGNORED,
    LIMIT_HEADERS,
    POOLING_PATHS,
    REQUEST_ID,
    RERANK_PATHS,
    SCORE_PATHS,
    Edge,
)
from baton.gateway.http.embeddings import EmbeddingsApi
from baton.gateway.http.errors import (
    on_baton_error,
    on_routing_error,
)
from baton.gateway.http.estimates import EstimateApi
from baton.gateway.http.messages.api import MessagesApi
from baton.gateway.http.models import ModelsApi
from baton.gateway.http.openapi.admin_endpoints import ADMIN_ENDPOINTS
from baton.gateway.http.openapi.endpoint import Endpoint
from baton.gateway.http.openapi.endpoints import ENDPOINTS
from baton.gateway.http.pages.console_page import ConsoleApi
from baton.gateway.http.pages.docs_page import DocsApi
from baton.gateway.http.pages.front_page import FrontPage
from baton.gateway.http.responses.api import ResponsesApi
from baton.gateway.http.responses.background import BackgroundResponses
from baton.gateway.http.responses.kept_api import KeptResponsesApi
from baton.gateway.http.scoring.classify import ClassifyApi
from baton.gateway.http.scoring.scores import ScoresApi
from baton.gateway.http.sending.resuming import ResumableRequests, StreamsApi
from baton.gateway.http.status_pages import StatusPages
from baton.gateway.http.tokenization import TokenizationApi
from baton.gateway.requests.gateway import Gateway

EXPOSED = (
    REQUEST_ID,
    ANTHROPICS_REQUEST_ID,
    IGNORED,
    TOOL_FORMAT,
    TOOL_SCHEMAS,
    "retry-after",
    *LIMIT_HEADERS,
)
"""Response headers that web pages of other origins may read."""


def build_app(
    gateway: Gateway, background: BackgroundResponses, batches: BatchService | None = None
) -> Starlette:
    """The application of the public port. `batches` None: batches are off."""
    routes = [*_batch_routes(gateway, batches), *_routes(gateway, background)]
    return _app(
        routes,
        [
            *_cross_origin(gateway.config.cors_origins),
            Middleware(Edge, gateway=gateway, paths=_paths(routes)),
            Middleware(ResumableRequests, gateway=gateway),
        ],
    )


def build_admin_app(gateway: Gateway) -> Starlette:
    """The application of the admin port."""
    routes = _admin_routes(gateway)
    return _app(routes, [Middleware(Edge, gateway=gateway, paths=_paths(routes), is_admin=True)])


def _app(routes: Sequence[Route], middleware: Sequence[Middleware]) -> Starlette:
    app = Starlette(
        routes=routes,
        middleware=middleware,
        exception_handlers={
            BatonError: on_baton_error,
            HTTPException: on_routing_error,
        },
    )
    app.router.redirect_slashes = False
    return app


def _paths(routes: Sequence[Route]) -> frozenset[str]:
    return frozenset(route.path for route in routes if not route.param_convertors)


def _routes(gateway: Gateway, background: BackgroundResponses) -> list[Route]:
    models, pages, streams = ModelsApi(gateway), StatusPages(gateway), StreamsApi(gateway)
    texts, messages = TokenizationApi(gateway), MessagesApi(gateway)
    explained, kept = DecisionsApi(gateway, tells_all=False), KeptResponsesApi(background)
    responses, embeddings = ResponsesApi(gateway, background), EmbeddingsApi(gateway)
    scores, classify = ScoresApi(gateway), ClassifyApi(gateway).create
    return [
        Route("/v1/completions", CompletionsApi(gateway).create, methods=["POST"]),
        Route("/v1/chat/completions", ChatApi(gateway).create, methods=["POST"]),
        Route("/v1/responses", responses.create, methods=["POST"]),
        Route("/v1/responses/input_tokens", responses.count_tokens, methods=["POST"]),
        Route("/v1/responses/{response_id}", kept.get, methods=["GET"]),
        Route("/v1/responses/{response_id}", kept.delete, methods=["DELETE"]),
        Route("/v1/responses/{response_id}/input_items", kept.input_items),
        Route("/v1/responses/{response_id}/cancel", kept.cancel, methods=["POST"]),
        Route("/v1/messages", messages.create, methods=["POST"]),
        Route("/v1/messages/count_tokens", messages.count_tokens, methods=["POST"]),
        Route("/v1/embeddings", embeddings.create, methods=["POST"]),
        *(Route(path, embeddings.pool, methods=["POST"]) for path in POOLING_PATHS),
        *(Route(path, classify, methods=["POST"]) for path in CLASSIFY_PATHS),
        *(Route(path, scores.score, methods=["POST"]) for path in SCORE_PATHS),
        *(Route(path, scores.rerank, methods=["POST"]) for path in RERANK_PATHS),
        *(
            Route(f"{prefix}/{name}", getattr(texts, name), methods=["POST"])
            for prefix in ("", "/v1")
            for name in ("tokenize", "detokenize")
        ),
        Route("/v1/estimate", EstimateApi(gateway).create, methods=["POST"]),
        Route("/v1/requests/{request_id:path}", explained.get),
        Route("/v1/models", models.list_all),
        Route("/v1/models/{model_id:path}", models.get),
        Route("/v1/streams", streams.resume),
        Route("/v1/streams/{stream_id}", streams.end, methods=["DELETE"]),
        Route("/health", pages.health),
        Route("/ready", pages.ready),
        Route("/-/healthz", pages.proxy_health),
        Route("/-/routes", pages.proxy_routes),
        *_pages(gateway, ENDPOINTS),
    ]


def _batch_routes(gateway: Gateway, service: BatchService | None) -> list[Route]:
    files, batches = FilesApi(gateway, service), BatchesApi(gateway, service)
    messages = MessageBatchesApi(gateway, service)
    return [
        Route("/v1/files", files.list_all),
        Route("/v1/files", files.create, methods=["POST"]),
        Route("/v1/files/{file_id}", files.get),
        Route("/v1/files/{file_id}", files.delete, methods=["DELETE"]),
        Route("/v1/files/{file_id}/content", files.content),
        Route("/v1/batches", batches.list_all),
        Route("/v1/batches", batches.create, methods=["POST"]),
        Route("/v1/batches/{batch_id}", batches.get),
        Route("/v1/batches/{batch_id}/cancel", batches.cancel, methods=["POST"]),
        Route("/v1/messages/batches", messages.list_all),
        Route("/v1/messages/batches", messages.create, methods=["POST"]),
        Route("/v1/messages/batches/{batch_id}", messages.get),
        Route("/v1/messages/batches/{batch_id}", messages.delete, methods=["DELETE"]),
        Route("/v1/messages/batches/{batch_id}/cancel", messages.cancel, methods=["POST"]),
        Route("/v1/messages/batches/{batch_id}/results", messages.results),
    ]


def _admin_routes(gateway: Gateway) -> list[Route]:
    pages, explained = StatusPages(gateway), DecisionsApi(gateway, tells_all=True)
    return [
        *_pages(gateway, ADMIN_ENDPOINTS),
        Route("/metrics", pages.metrics),
        Route("/v1/requests/{request_id:path}", explained.get),
        Route("/debug/leaks", pages.leaks),
        Route("/debug/status", pages.status),
        Route("/debug/decisions", explained.capture),
        Route("/debug/planner", pages.planner),
        Route("/debug/drain", pages.drain, methods=["POST"]),
        Route("/debug/undrain", pages.undrain, methods=["POST"]),
        Route("/debug/reset_prefix_cache", pages.reset_prefix_cache, methods=["POST"]),
        Route("/debug/flip", pages.flip, methods=["POST"]),
        Route("/debug/chaos", pages.chaos, methods=["POST"]),
    ]


def _pages(gateway: Gateway, endpoints: Sequence[Endpoint]) -> list[Route]:
    """Routes of the web pages of a port with these endpoints."""
    docs, console = DocsApi(gateway, endpoints), ConsoleApi(gateway)
    front = FrontPage(gateway, {endpoint.path for endpoint in endpoints})
    return [
        Route("/", front.page),
        Route("/version", front.version),
        Route("/console", console.page),
        Route("/console/{name}", console.part),
        Route("/docs", docs.page),
        Route("/openapi.json", docs.document),
    ]


def _cross_origin(origins: Sequence[str]) -> list[Middleware]:
    """The CORS middleware; outermost, so that web pages of these origins can read errors, too."""
    if not origins:
        return []
    return [
        Middleware(
            CORSMiddleware,
            allow_origins=origins,
            allow_methods=("GET", "POST", "DELETE"),
            allow_headers=("*",),
            expose_headers=EXPOSED,
        )
    ]
