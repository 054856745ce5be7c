"""What is told when several ranks come up together and one of them does not."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

import pytest

from baton.core.errors import CheckpointError
from baton.platform.cluster.ranks.ranks import together

REASON = "rank 1 has ended: CheckpointError: no weights on this node"


@dataclass
class OtherRanks:
    """Whose end a test decides."""

    end: asyncio.Future[str] = field(default_factory=asyncio.Future)

    async def first_end(self, patience_s: float | None = None) -> str:
        done, _ = await asyncio.wait((self.end,), timeout=patience_s)
        return self.end.result() if done else ""


async def give(result: object) -> object:
    """What the lead does, at once."""
    if isinstance(result, Exception):
        raise result
    return result


async def test_who_leads_nobody_waits_for_nobody() -> None:
    assert await together(None, give(5)) == 5


async def test_a_lead_whose_ranks_come_up_gets_what_it_made() -> None:
    assert await together(OtherRanks(), give(5)) == 5


async def test_a_rank_that_ends_is_the_reason_while_the_lead_still_waits_for_it() -> None:
    others = OtherRanks()
    waiting = asyncio.create_task(together(others, asyncio.sleep(3600)))

    others.end.set_result(REASON)

    with pytest.raises(RuntimeError, match=REASON):
        await waiting


async def test_a_rank_that_ends_is_the_reason_where_the_lead_only_lost_its_connection() -> None:
    others = OtherRanks()
    lost = asyncio.create_task(together(others, give(RuntimeError("connection closed"))))
    await asyncio.sleep(0)

    others.end.set_result(REASON)

    with pytest.raises(RuntimeError, match=REASON):
        await lost


async def test_what_the_lead_itself_cannot_load_is_told_at_once() -> None:
    with pytest.raises(CheckpointError, match="torn"):
        await together(OtherRanks(), give(CheckpointError("torn")))
