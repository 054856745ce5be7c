from __future__ import annotations

from array import array
from dataclasses import replace

import numpy as np
import pytest

from baton.core.ids import RequestId, TransferId
from baton.core.kv_pool import Census, Holder, HolderKind, Holdings
from baton.kv_transfer.handoff.auditor import MAX_NAMED, AuditReport, audit, tally

REQUEST = Holder(HolderKind.REQUEST, "req")
LEASE = Holder(HolderKind.LEASE, "kv")
QUARANTINE = Holder(HolderKind.QUARANTINE, "kv-over")

HEALTHY = Census(
    num_blocks=8,
    ref_counts=(2, 2, 1, 1, 1, 0, 0, 0),
    tables={REQUEST: (0, 1, 2), LEASE: (0, 3), QUARANTINE: (1, 4)},
    cached=(5,),
    free=(6, 7),
)


def audited(census: Census) -> AuditReport:
    return audit(census, {RequestId("req")}, {TransferId("kv"), TransferId("kv-over")})


def test_each_block_counts_once_by_its_first_match() -> None:
    report = audited(HEALTHY)

    assert report == AuditReport(
        num_blocks=8, quarantined=2, leased=2, live=1, cached=1, free=2, violations=()
    )
    assert report.num_counted == 8


def test_the_pools_own_account_has_the_same_numbers() -> None:
    holdings = Holdings(num_blocks=8, tables=HEALTHY.tables, num_cached=1, num_free=2)

    assert tally(holdings) == audited(HEALTHY)


@pytest.mark.parametrize(
    ("census", "violation"),
    [
        (replace(HEALTHY, free=(6,)), "block 7 is lost: neither"),
        (
            replace(HEALTHY, free=(2, 6, 7)),
            "block 2 is both free and referenced by request req",
        ),
        (
            replace(HEALTHY, cached=(3, 5)),
            "block 3 is both cached and referenced by lease kv",
        ),
        (replace(HEALTHY, free=(5, 6, 7)), "block 5 is both cached and free"),
        (
            replace(HEALTHY, ref_counts=(2, 2, 1, 2, 1, 0, 0, 0)),
            "block 3 counts 2 references but is listed 1 times",
        ),
        (
            replace(HEALTHY, tables={**HEALTHY.tables, LEASE: (0, 3, 3)}),
            "lease kv lists block 3 2 times",
        ),
        (replace(HEALTHY, free=(6, 7, 8)), "block 8 does not exist: there are 8"),
        (replace(HEALTHY, free=(6, 7, 6)), "block 6 is 2 times among those that are free"),
        (
            replace(HEALTHY, ref_counts=HEALTHY.ref_counts[:7]),
            "7 reference counts for 8 blocks",
        ),
    ],
)
def test_a_violation_is_named(census: Census, violation: str) -> None:
    assert any(found.startswith(violation) for found in audited(census).violations)


@pytest.mark.parametrize("holder", [REQUEST, LEASE, QUARANTINE])
def test_blocks_whose_owner_is_gone_are_named_as_leaked(holder: Holder) -> None:
    known = {REQUEST, LEASE, QUARANTINE} - {holder}

    report = audit(
        HEALTHY,
        {RequestId(h.id) for h in known if h.kind is HolderKind.REQUEST},
        {TransferId(h.id) for h in known if h.kind is not HolderKind.REQUEST},
    )

    blocks = list(HEALTHY.tables[holder])
    leak = f"{holder.kind} {holder.id} is unknown to its owner and holds blocks {blocks}"
    assert report.violations == (leak,)


def test_a_pool_of_a_million_blocks_is_judged_in_a_few_words() -> None:
    num_blocks = 1_000_000
    ref_counts = array("i", bytes(4 * num_blocks))
    ref_counts[0] = ref_counts[num_blocks - 1] = 1
    free = array("i", np.arange(1, num_blocks - 1, dtype=np.int32).tobytes())
    census = replace(
        HEALTHY,
        num_blocks=num_blocks,
        ref_counts=ref_counts,
        tables={REQUEST: (0, num_blocks - 1)},
        cached=(),
        free=free,
    )

    report = audited(census)
    lacking = audited(replace(census, free=free[1:]))
    lost = audited(replace(census, free=array("i")))

    assert (report.live, report.free, report.violations) == (2, num_blocks - 2, ())
    assert lacking.violations == ("block 1 is lost: neither referenced, cached nor free",)
    assert len(lost.violations) == MAX_NAMED + 1 and lost.num_counted == 2
    assert lost.violations[-1].startswith(f"{num_blocks - 2 - MAX_NAMED} more: the last, block ")
