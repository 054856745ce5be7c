"""Which objective the headers of a call give it, and which of them have no effect."""

from __future__ import annotations

import pytest

from baton.core.errors import InvalidRequest
from baton.gateway.access.api_keys import ANYBODY, Caller
from baton.gateway.access.config import GatewayConfig, SloClassConfig, TenantConfig
from baton.gateway.access.objectives import (
    CLASS_HEADER,
    TPOT_HEADER,
    TTFT_HEADER,
    objective_of,
)
from baton.router.fairness.slo import NO_SLO, Slo

CLASSES = {
    "chat": SloClassConfig(ttft_s=2.0, itl_s=0.05),
    "batch": SloClassConfig(ttft_s=60.0),
}
TENANTS = {"reports": TenantConfig(api_keys=frozenset({"k1"}), slo_class="batch")}
CONFIG = GatewayConfig(slo_classes=CLASSES, slo_class="chat", tenants=TENANTS)
KEYED = Caller(min_priority=0, is_operator=False)
REPORTS = Caller(tenant="reports", min_priority=0, is_operator=False)
URGENT = Caller(tenant="reports", min_priority=-1, is_operator=False)
CHAT, BATCH = Slo(name="chat", ttft_s=2.0, itl_s=0.05), Slo(name="batch", ttft_s=60.0)


def asked(
    caller: Caller, named: str = "", ttft: str = "", tpot: str = "", config: GatewayConfig = CONFIG
) -> tuple[Slo, list[str]]:
    ignored: list[str] = []
    headers = {CLASS_HEADER: named, TTFT_HEADER: ttft, TPOT_HEADER: tpot}
    return objective_of(config, caller, headers.get, ignored), ignored


def test_a_class_that_nobody_knows_has_no_effect() -> None:
    """Gateways before this one send names of their own with every request."""
    assert asked(ANYBODY, "of-llm-d", config=GatewayConfig()) == (
        Slo(),
        [CLASS_HEADER],
    )
    assert asked(REPORTS, "of-llm-d") == (BATCH, [CLASS_HEADER])
    assert asked(ANYBODY, config=GatewayConfig())[0] is NO_SLO


def test_who_may_not_go_before_others_asks_for_no_tighter_objective_than_its_class() -> None:
    assert asked(REPORTS, "chat") == (BATCH, [CLASS_HEADER])
    assert asked(KEYED, "batch") == (BATCH, []), "any time between tokens is looser"
    assert asked(URGENT, "chat") == (CHAT, [])
    assert asked(ANYBODY, "batch", ttft="1") == (Slo(name="batch", ttft_s=0.001), [])
    assert asked(KEYED, ttft="1", tpot="1") == (CHAT, [TTFT_HEADER, TPOT_HEADER])
    assert asked(KEYED, ttft="3000", tpot="60") == (Slo(name="chat", ttft_s=3.0, itl_s=0.06), [])
    without = GatewayConfig()
    assert asked(KEYED, ttft="1", config=without) == (Slo(ttft_s=10.0), [TTFT_HEADER])
    assert asked(KEYED, ttft="11000", tpot="1", config=without) == (
        Slo(ttft_s=11.0, itl_s=0.001),
        [],
    )


@pytest.mark.parametrize("given", ["soon", "0", "-1", "nan", "inf"])
def test_milliseconds_that_are_none_are_refused(given: str) -> None:
    with pytest.raises(InvalidRequest, match=TTFT_HEADER):
        asked(ANYBODY, ttft=given)
