"""Decides whether another request's blocks are waited for or taken by preemption, and from whom."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from baton.engine.blocks.block_supply import BlockSupply
from baton.engine.request.request import Request
from baton.engine.schedule.waiting_queue import WaitingQueue


def will_free_blocks_for(
    tenant: str, running: Sequence[Request], held_tenants: Collection[str], supply: BlockSupply
) -> bool:
    """Whether blocks that `tenant` may use will become free by themselves: some running request
    has them until it finishes, or a computed prompt until a decode replica has fetched it."""
    if not running and not held_tenants:
        return False
    donors = supply.donors(tenant)
    return any(request.tenant in donors for request in running) or any(
        held in donors for held in held_tenants
    )


def victim_for(
    tenant: str, running: Sequence[Request], adopted: WaitingQueue, supply: BlockSupply
) -> Request:
    """The request to preempt so that `tenant` gets blocks. While `tenant` is within its reserved
    share, requests of other tenants come first."""
    donors = supply.donors(tenant)
    victim: Request | None = None
    if supply.is_kept_for(tenant, 1):
        victim = _least_of([donor for donor in donors if donor != tenant], running, adopted)
    victim = victim or _least_of(donors, running, adopted)
    assert victim is not None, "the request that wants blocks is itself a candidate"
    return victim


def _least_of(
    tenants: Sequence[str], running: Sequence[Request], adopted: WaitingQueue
) -> Request | None:
    """The request of `tenants` with the lowest priority. Ties go to an adopted request before a
    running one, then to the youngest."""
    runs = next((request for request in reversed(running) if request.tenant in tenants), None)
    waits = adopted.last_of(tenants)
    if runs is None or waits is None:
        return runs or waits
    return waits if waits.priority >= runs.priority else runs
