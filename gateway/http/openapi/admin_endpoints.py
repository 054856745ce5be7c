"""The admin port's endpoints, and the pages of both ports, for the OpenAPI document."""

from __future__ import annotations

from typing import Any

from baton.gateway.http.decisions import JSON_LINES, ExplainedRequest
from baton.gateway.http.openapi.endpoint import Endpoint
from baton.gateway.http.pages.front_page import FrontAnswer, VersionAnswer
from baton.gateway.http.status_pages import (
    ChaosAnswer,
    ChaosBody,
    DrainAnswer,
    DrainBody,
    FlipBody,
    ResetPrefixCacheAnswer,
    ResetPrefixCacheBody,
    UndrainBody,
)

OPERATIONS = "Operations"

PAGES = (
    Endpoint(
        path="/openapi.json",
        tag=OPERATIONS,
        summary="This description",
        answer=dict[str, Any],
    ),
    Endpoint(path="/docs", tag=OPERATIONS, summary="The same as a page", media="text/html"),
    Endpoint(
        path="/console",
        tag=OPERATIONS,
        summary="A playground, why requests ran where they ran, and the replicas",
        details="Playground at the public port, replicas and requests of others at the admin port.",
        media="text/html",
    ),
    Endpoint(
        path="/console/{name}",
        tag=OPERATIONS,
        summary="The files of the console",
        media="text/plain",
    ),
    Endpoint(
        path="/",
        tag=OPERATIONS,
        summary="What is here",
        details="A page, where `text/html` is accepted.",
        answer=FrontAnswer,
    ),
    Endpoint(path="/version", tag=OPERATIONS, summary="Baton's version", answer=VersionAnswer),
)
"""Endpoints of both ports."""

ADMIN_ENDPOINTS = (
    Endpoint(path="/metrics", tag=OPERATIONS, summary="For Prometheus", media="text/plain"),
    Endpoint(
        path="/debug/leaks",
        tag=OPERATIONS,
        summary="A census of KV blocks on all replicas",
        answer=dict[str, Any],
    ),
    Endpoint(
        path="/debug/status",
        tag=OPERATIONS,
        summary="Replicas, queues and transfers",
        answer=dict[str, Any],
    ),
    Endpoint(
        path="/debug/decisions",
        tag=OPERATIONS,
        summary="Where the last requests went, for `baton replay`",
        details="A line for the replicas, then one for each request: sizes, which prompts have "
        "what in common, where it went and what came of it. Nothing else of the prompts.",
        media=JSON_LINES,
    ),
    Endpoint(
        path="/debug/planner",
        tag=OPERATIONS,
        summary="How many replicas the planner wants, and why",
        details="Its last decision, and the last changes. `baton explain planner` shows them.",
        answer=dict[str, Any],
    ),
    Endpoint(
        path="/debug/drain",
        method="post",
        tag=OPERATIONS,
        summary="Empty a replica",
        details="Nothing more is placed there, and what runs there moves elsewhere, with its KV. "
        "Ask again to see how far it is. `baton drain` does.",
        body=DrainBody,
        answer=DrainAnswer,
        example={"replica": "decode-b6x7lxkx"},
    ),
    Endpoint(
        path="/debug/undrain",
        method="post",
        tag=OPERATIONS,
        summary="Take a drained replica back into service",
        details="It takes requests again, with the weights and the KV that it has.",
        body=UndrainBody,
        answer=DrainAnswer,
        example={"replica": "decode-b6x7lxkx"},
    ),
    Endpoint(
        path="/debug/flip",
        method="post",
        tag=OPERATIONS,
        summary="Have a replica take the other role",
        details="It drains, then serves in the other role with the weights and the KV that it has. "
        "/debug/status shows its role, and under `flip` why it stayed what it is. `baton flip` "
        "waits until it is done.",
        body=FlipBody,
        answer=DrainAnswer,
        example={"replica": "prefill-b6x7lxkx", "to": "decode"},
    ),
    Endpoint(
        path="/debug/reset_prefix_cache",
        method="post",
        tag=OPERATIONS,
        summary="Have replicas forget what is cached",
        details="The KV of no prompt before is found on their devices any more; what runs keeps "
        "its own. Tiers are left as they are.",
        body=ResetPrefixCacheBody,
        answer=ResetPrefixCacheAnswer,
        example={"replica": "decode-b6x7lxkx"},
    ),
    Endpoint(
        path="/debug/chaos",
        method="post",
        tag=OPERATIONS,
        summary="Have this gateway make faults, or be killed",
        details="Where `chaos.enabled` is set; otherwise 403. For `baton chaos`.",
        body=ChaosBody,
        answer=ChaosAnswer,
        example={"rules": [{"at": "registry.watch", "fault": "cut", "rate": 0.5}]},
    ),
    Endpoint(
        path="/v1/requests/{request_id}",
        tag=OPERATIONS,
        summary="Why a request ran where it ran",
        details=(
            "Whoever's it was, by its `x-request-id` or the id of its answer, for as long as the "
            "gateway that served it keeps that."
        ),
        answer=ExplainedRequest,
    ),
    *PAGES,
)
"""Endpoints of the admin port."""
