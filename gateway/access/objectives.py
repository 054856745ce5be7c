"""The service level objective of a call: by its headers, its tenant's class, or the gateway's.

    x-gateway-inference-objective: NAME     a class of gateway.slo_classes      (llm-d's headers)
    x-slo-ttft-ms, x-slo-tpot-ms: NUMBER    its own; each goes before the class's

The names are the same as HTTP headers and as gRPC metadata. A caller that may not ask for a
`priority` below 0 may not tighten its objective either: a header tighter than its own class has no
effect.
"""

from __future__ import annotations

from collections.abc import Callable
from math import inf, isfinite

from baton.core.errors import InvalidRequest
from baton.gateway.access.api_keys import Caller
from baton.gateway.access.config import GatewayConfig, SloClassConfig
from baton.router.fairness.slo import NO_SLO, UNHURRIED_S, Slo

CLASS_HEADER = "x-gateway-inference-objective"
TTFT_HEADER, TPOT_HEADER = "x-slo-ttft-ms", "x-slo-tpot-ms"

ANY = SloClassConfig()


def objective_of(
    config: GatewayConfig,
    caller: Caller,
    header: Callable[[str], str | bytes | None],
    ignored: list[str],
) -> Slo:
    """Adds headers without effect to `ignored`, such as class names of a gateway in front of this
    one. Raises InvalidRequest, naming the header, for a value that is not a number."""
    named, ttft, tpot = _text(header(CLASS_HEADER)), header(TTFT_HEADER), header(TPOT_HEADER)
    if not (named or ttft or tpot or config.slo_classes):
        return NO_SLO
    tenant = config.tenants.get(caller.tenant)
    name = (tenant.slo_class if tenant else "") or config.slo_class
    own = config.slo_classes.get(name, ANY)
    least_ttft_s, least_itl_s = 0.0, 0.0
    if not caller.may_be_urgent:
        least_ttft_s, least_itl_s = _soonest_s(own), own.itl_s or 0.0
    found = config.slo_classes.get(named)
    if found and _soonest_s(found) >= least_ttft_s and (found.itl_s or inf) >= least_itl_s:
        name, own = named, found
    elif named:
        ignored.append(CLASS_HEADER)
    ttft_s, itl_s = own.ttft_s, own.itl_s
    if (asked_s := _seconds(TTFT_HEADER, ttft)) is not None:
        ttft_s = max(asked_s, least_ttft_s)
        ignored.extend([TTFT_HEADER] if asked_s < ttft_s else [])
    if (asked_s := _seconds(TPOT_HEADER, tpot)) is not None:
        itl_s = max(asked_s, least_itl_s)
        ignored.extend([TPOT_HEADER] if asked_s < itl_s else [])
    return Slo(name=name, ttft_s=ttft_s, itl_s=itl_s)


def _soonest_s(one: SloClassConfig) -> float:
    """Seconds until its requests are due: `ttft_s`, or the default of requests without an
    objective."""
    return UNHURRIED_S if one.ttft_s is None else one.ttft_s


def _seconds(field: str, given: str | bytes | None) -> float | None:
    if not given:
        return None
    try:
        milliseconds = float(_text(given))
    except ValueError:
        milliseconds = 0.0
    if not (isfinite(milliseconds) and milliseconds > 0):
        raise InvalidRequest(
            f"{field}: give milliseconds, more than 0; got {_text(given)!r}", field=field
        )
    return milliseconds / 1e3


def _text(given: str | bytes | None) -> str:
    return given.decode(errors="replace") if isinstance(given, bytes) else given or ""
