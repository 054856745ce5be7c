"""What Ingress and routes lead in is what gateways serve clients, by HTTP and by gRPC."""

from __future__ import annotations

from typing import Any

from grpc_reflection.v1alpha import reflection
from tests.helm.chart import everything, render

from baton.gateway.grpc.server import HEALTH, SERVICE
from baton.gateway.http.edge import GUARDED
from baton.gateway.http.openapi.admin_endpoints import OPERATIONS
from baton.gateway.http.openapi.endpoints import ENDPOINTS


def is_below(path: str, prefix: str) -> bool:
    """As Ingress and Gateway API match prefixes: whole steps."""
    return path == prefix or path.startswith(f"{prefix}/")


def led_in(values: dict[str, Any]) -> tuple[list[str], list[str]]:
    """Paths of the Ingress, and of the HTTPRoute."""
    rendered = render(values)
    [rule, *_] = rendered.one("Ingress")["spec"]["rules"]
    [of_route] = rendered.one("HTTPRoute")["spec"]["rules"]
    matches = [one["path"] for one in of_route["matches"]]
    assert {one["type"] for one in matches} == {"PathPrefix"}
    return [one["path"] for one in rule["http"]["paths"]], [one["value"] for one in matches]


def test_what_gateways_guard_is_led_in_and_nothing_else() -> None:
    of_ingress, of_route = led_in(everything())

    assert of_ingress == of_route == [path.rstrip("/") for path in GUARDED]


def test_every_endpoint_of_the_api_is_led_in() -> None:
    of_ingress, _ = led_in(everything())
    api = [one.path for one in ENDPOINTS if one.tag != OPERATIONS]

    assert len(api) > 25
    assert [path for path in api if not any(is_below(path, one) for one in of_ingress)] == []


def test_every_service_of_the_grpc_port_is_led_in() -> None:
    [rule] = render(everything()).one("GRPCRoute")["spec"]["rules"]

    services = {match["method"]["service"] for match in rule["matches"]}

    assert services == {SERVICE, HEALTH, reflection.SERVICE_NAME}
