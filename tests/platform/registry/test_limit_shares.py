"""Several gateways, one limit: what they let in together."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from contextlib import suppress

import pytest

from baton.core.clock import ManualClock
from baton.core.errors import RateLimited
from baton.core.ids import Epoch
from baton.gateway.access.config import TenantConfig
from baton.gateway.access.rate_limits import RateLimits
from baton.platform.cluster.gateway_node import share_limits
from baton.platform.registry.limit_shares import LimitShares

ACME = {"acme": TenantConfig(api_keys=frozenset({"k"}), requests_per_minute=60)}
GATEWAYS = [Epoch(name) for name in "abc"]


def let_in(limits: RateLimits, num_asked: int) -> int:
    num = 0
    for _ in range(num_asked):
        with suppress(RateLimited):
            limits.admit("acme", 1)
            num += 1
    return num


@pytest.mark.parametrize("asked", [(4, 4, 4), (12, 0, 0), (9, 3, 0)])
def test_gateways_together_let_in_the_limit_wherever_clients_ask(asked: tuple[int, ...]) -> None:
    clock = ManualClock()
    shares = LimitShares(clock)
    gateways = [RateLimits(ACME, clock) for _ in asked]
    for limits in gateways:
        limits.be_share({"acme": 1 / 3})
    num = 0
    for second in range(360):
        clock.advance(1)
        for epoch, limits, num_asked in zip(GATEWAYS, gateways, asked, strict=True):
            num_in = let_in(limits, num_asked)
            num += num_in if second >= 60 else 0  # after the first burst
            limits.be_share(shares.report(epoch, limits.demand))

    assert 300 * 0.9 <= num <= 300 * 1.02


def test_who_is_silent_leaves_its_share_to_the_others() -> None:
    clock = ManualClock()
    shares = LimitShares(clock)
    for epoch in GATEWAYS:
        found = shares.report(epoch, {"acme": 1.0})
    assert found == {"acme": pytest.approx(1 / 3)}

    clock.advance(3)
    shares.report(GATEWAYS[0], {"acme": 1.0})
    clock.advance(1)

    assert shares.report(GATEWAYS[0], {"acme": 0.0}) == {"acme": 1.0}


async def test_while_the_registry_is_away_the_share_stays_what_it_was() -> None:
    answers: list[dict[str, float] | Exception] = [{"acme": 0.5}, OSError("away"), OSError("away")]
    asked = asyncio.Event()

    class Shares:
        async def share_limits(
            self, gateway: Epoch, demand: Mapping[str, float]
        ) -> dict[str, float]:
            assert demand == {"acme": 0.0}
            answer = answers.pop(0)
            if not answers:
                asked.set()
            if isinstance(answer, Exception):
                raise answer
            return answer

    limits = RateLimits(ACME, ManualClock())
    sharing = asyncio.create_task(share_limits(limits, Shares(), GATEWAYS[0], each_s=0))
    await asked.wait()
    sharing.cancel()

    assert let_in(limits, 100) == 30
