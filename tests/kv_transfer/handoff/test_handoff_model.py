"""Handoffs under everything that can happen to them, in any order, against real pools.

After every step each pool's equation must hold, and every byte that somebody may use must be what
was computed.
"""

from __future__ import annotations

import random

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, rule
from tests.kv_transfer.handoff.handoffs import EVENTS, Handoffs, any_index

from baton.core.kv_pool import Census, HolderKind


def assert_all_is_well(handoffs: Handoffs) -> None:
    for report in (handoffs.p.audit(), handoffs.d.audit()):
        assert report.violations == ()
        assert report.num_counted == report.num_blocks
    # Nobody else writes the blocks of a request.
    assert all(handoffs.d.holds_kv(request_id) for request_id in handoffs.d.requests)
    # Only what is still being read, or written, is quarantined.
    reading = {handoff.transfer_id for handoff, _ in handoffs.readings}
    assert quarantined_in(handoffs.p.pool.census()) <= reading
    writing = {filling.transfer_id for filling, _ in handoffs.fills}
    assert quarantined_in(handoffs.d.pool.census()) <= writing
    # Leases keep to their share of the pool.
    assert handoffs.d.receiver.num_leased_blocks <= handoffs.d.pool.num_blocks / 2


def quarantined_in(census: Census) -> set[str]:
    return {holder.id for holder in census.tables if holder.kind is HolderKind.QUARANTINE}


def assert_it_ends_well(handoffs: Handoffs) -> None:
    """When all readers and writers have ended and all time is up, no handoff holds anything."""
    for _, reading in handoffs.readings:
        handoffs.p.sender.end_read(reading)
    for filling, fill in handoffs.fills:
        filling.end(fill, is_written=False)
    handoffs.p.sender.expire(float("inf"))
    handoffs.d.receiver.expire(float("inf"))
    for replica in (handoffs.p, handoffs.d):
        for request_id in list(replica.requests):
            replica.finish(request_id)
        report = replica.audit()
        assert report.violations == ()
        assert report.quarantined == report.leased == report.live == 0


class HandoffMachine(RuleBasedStateMachine):
    """Short lives, which Hypothesis shrinks when one goes wrong."""

    def __init__(self) -> None:
        super().__init__()
        self.handoffs = Handoffs()

    @rule(event=st.sampled_from(EVENTS), pick=any_index, which=any_index)
    def happen(self, event: str, pick: int, which: int) -> None:
        self.handoffs.happen(event, pick, which)
        assert_all_is_well(self.handoffs)

    def teardown(self) -> None:
        assert_it_ends_well(self.handoffs)


TestShortLives = HandoffMachine.TestCase
TestShortLives.settings = settings(
    max_examples=60,
    stateful_step_count=80,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)


@pytest.mark.parametrize(
    "seed", [pytest.param(seed, marks=[pytest.mark.wide] if seed > 3 else []) for seed in range(8)]
)
def test_nothing_leaks_in_a_long_life(seed: int) -> None:
    chance, handoffs = random.Random(seed), Handoffs()
    for _ in range(2500):
        pick, which = chance.randrange(10_000), chance.randrange(10_000)
        handoffs.happen(chance.choice(EVENTS), pick, which)
        assert_all_is_well(handoffs)
    assert_it_ends_well(handoffs)

    assert handoffs.num_adopted > 10
