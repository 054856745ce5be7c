"""The service level objective of a call: by its headers, its tenant's class, or the gateway's.

    x-gateway-inference-objective: NAME     a class of gateway.slo_classes      (llm-d's headers)
    x-slo-ttft-ms, x-slo-tpot-ms: NUMBER    its own; each goes before the class's

The same names over HTTP and as metadata of gRPC.
"""

from __future__ import annotations

from collections.abc import Callable
from math import isfinite

from baton.core.errors import InvalidRequest
from baton.gateway.access.config import GatewayConfig
from baton.router.fairness.slo import NO_SLO, Slo

CLASS_HEADER = "x-gateway-inference-objective"
TTFT_HEADER, TPOT_HEADER = "x-slo-ttft-ms", "x-slo-tpot-ms"


def objective_of(
    config: GatewayConfig, tenant: str, header: Callable[[str], str | bytes | None]
) -> Slo:
    """Raises InvalidRequest, which names the header."""
    named, ttft, tpot = header(CLASS_HEADER), header(TTFT_HEADER), header(TPOT_HEADER)
    if not (named or ttft or tpot or config.slo_classes):
        return NO_SLO
    known = config.tenants.get(tenant)
    name = _text(named) or (known.slo_class if known else "") or config.slo_class
    found = config.slo_classes.get(name)
    if name and found is None:
        names = ", ".join(config.slo_classes) or "none"
        raise InvalidRequest(
            f"{CLASS_HEADER}: there is no class {name!r} in gateway.slo_classes, which has {names}",
            field=CLASS_HEADER,
        )
    ttft_s, itl_s = _seconds(TTFT_HEADER, ttft), _seconds(TPOT_HEADER, tpot)
    if found is not None:
        ttft_s = found.ttft_s if ttft_s is None else ttft_s
        itl_s = found.itl_s if itl_s is None else itl_s
    return Slo(name=name, ttft_s=ttft_s, itl_s=itl_s)


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
