"""Whatever the OpenAPI document allows, and what it forbids: never a fault of the server."""

from __future__ import annotations

from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, settings
from schemathesis.checks import CHECKS
from tests.gateway.scripted import Script, ScriptedDispatcher, make_model

from baton.gateway.access.config import GatewayConfig
from baton.gateway.http.app import build_app
from baton.gateway.http.responses.background import BackgroundResponses
from baton.gateway.http.responses.kept import KeptResponses
from baton.gateway.requests.gateway import Gateway

schemathesis.checks.load_all_checks()
CHECKED: list[Any] = CHECKS.get_by_names(
    [
        "not_a_server_error",
        "status_code_conformance",
        "content_type_conformance",
        "response_schema_conformance",
        "response_headers_conformance",
    ]
)


def make_app() -> Any:
    dispatcher = ScriptedDispatcher(Script(tokens=[5, 6, 7]))
    config = GatewayConfig(max_choices=8)
    gateway = Gateway(model=make_model(), dispatcher=dispatcher, config=config)
    return build_app(gateway, BackgroundResponses(KeptResponses(gateway)))


schema = schemathesis.openapi.from_asgi("/openapi.json", make_app(), timeout=120)


def examples(num: int) -> settings:
    """So many requests an endpoint, always the same."""
    return settings(
        max_examples=num,
        derandomize=True,
        database=None,
        deadline=None,
        suppress_health_check=list(HealthCheck),
    )


@schema.parametrize()
@examples(2)
def test_no_request_is_a_fault_of_the_server(case: schemathesis.Case[Any]) -> None:
    case.call_and_validate(checks=CHECKED)


@pytest.mark.wide
@schema.parametrize()
@examples(25)
def test_nor_is_any_of_many(case: schemathesis.Case[Any]) -> None:
    case.call_and_validate(checks=CHECKED)
