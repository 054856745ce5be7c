"""Whatever the OpenAPI document allows, and what it forbids: never a fault of the server.

schemathesis reads 11,700 requests off the document, each with one value that is at a limit or past
it, and draws more at random. `make test` sends some of each kind, spread evenly; a wide run
sends all, and some to second paths to the same answer. They are made when a test wants them: what
is made while tests are collected every worker would make.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.gateway.scripted import Script, ScriptedDispatcher, make_model

from baton.gateway.access.config import GatewayConfig
from baton.gateway.http.app import build_app
from baton.gateway.http.openapi.endpoint import Endpoint
from baton.gateway.http.openapi.endpoints import ENDPOINTS
from baton.gateway.http.responses.background import BackgroundResponses
from baton.gateway.http.responses.kept import KeptResponses
from baton.gateway.requests.gateway import Gateway

if TYPE_CHECKING:
    import schemathesis
    from schemathesis.schemas import APIOperation

CHECKED = (
    "not_a_server_error",
    "status_code_conformance",
    "content_type_conformance",
    "response_schema_conformance",
    "response_headers_conformance",
)
FEW, MANY = 8, 25
"""Of a kind that are read off the document, at most twice as many; drawn ones of a wide run."""


@functools.cache
def read_document() -> Any:
    import schemathesis

    dispatcher = ScriptedDispatcher(Script(tokens=[5, 6, 7]))
    config = GatewayConfig(max_choices=8)
    gateway = Gateway(model=make_model(), dispatcher=dispatcher, config=config)
    app = build_app(gateway, BackgroundResponses(KeptResponses(gateway)))
    return schemathesis.openapi.from_asgi("/openapi.json", app, timeout=120)


def send(case: schemathesis.Case[Any]) -> None:
    from schemathesis.checks import CHECKS, load_all_checks

    load_all_checks()
    checks: list[Any] = CHECKS.get_by_names(list(CHECKED))
    case.call_and_validate(checks=checks)


def send_drawn(cases: st.SearchStrategy[schemathesis.Case[Any]], num: int) -> None:
    """So many, always the same."""

    @settings(
        max_examples=num,
        derandomize=True,
        database=None,
        deadline=None,
        suppress_health_check=list(HealthCheck),
    )
    @given(case=cases)
    def each(case: schemathesis.Case[Any]) -> None:
        send(case)

    each()


def read_off(operation: APIOperation[Any, Any, Any, Any]) -> list[schemathesis.Case[Any]]:
    """Every limit of every field, from both sides."""
    from schemathesis.generation import GenerationMode

    schema = operation.schema
    generation = schema.config.generation_for(operation=operation)
    modes = list(GenerationMode)
    return list(
        schema.iter_coverage_cases(operation, generation_modes=modes, generation_config=generation)
    )


def some_of_each_kind(cases: Sequence[Any]) -> list[Any]:
    """All of what is rare, as a number below a minimum; of what is frequent (wrong types), some."""
    kinds: dict[object, list[Any]] = {}
    for case in cases:
        kinds.setdefault(case.meta.phase.data.scenario, []).append(case)
    return [case for kind in kinds.values() for case in kind[:: max(1, len(kind) // FEW)]]


def operation_at(name: str) -> APIOperation[Any, Any, Any, Any]:
    schema = read_document()
    found: APIOperation[Any, Any, Any, Any] | None = schema.find_operation_by_label(name)
    assert found is not None
    return found


def label(endpoint: Endpoint) -> str:
    return f"{endpoint.method.upper()} {endpoint.path}"


def first_paths() -> list[Endpoint]:
    """The endpoints without those that are like an earlier one but for the path."""
    first: dict[str, Endpoint] = {}
    for each in ENDPOINTS:
        first.setdefault(repr(dataclasses.replace(each, path="")), each)
    return list(first.values())


def test_the_document_has_no_endpoint_that_is_left_out_here() -> None:
    found = {each.ok().label for each in read_document().get_all_operations()}

    assert found <= {label(each) for each in ENDPOINTS}


@pytest.mark.parametrize(
    "at",
    [
        pytest.param(label(each), marks=[] if each in first_paths() else pytest.mark.wide)
        for each in ENDPOINTS
    ],
)
def test_no_request_is_a_fault_of_the_server(at: str) -> None:
    operation = operation_at(at)
    cases = read_off(operation)

    assert cases
    for case in some_of_each_kind(cases):
        send(case)
    for example in operation.get_strategies_from_examples():
        send_drawn(example, 1)


@pytest.mark.wide
@pytest.mark.parametrize("at", [label(each) for each in first_paths()])
def test_nor_is_any_of_many(at: str) -> None:
    from schemathesis.generation import GenerationMode

    operation = operation_at(at)

    for case in read_off(operation):
        send(case)
    for mode in GenerationMode:
        send_drawn(operation.as_strategy(generation_mode=mode), MANY)
