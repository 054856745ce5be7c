"""A replica tells how much of its model has come to the node."""

from __future__ import annotations

import asyncio

from tests.platform.replica.test_startup import Heard, startup

from baton.platform.cluster.nodes.node_model import FetchStages


async def test_what_a_thread_fetches_is_told_as_a_stage_with_its_share() -> None:
    registry = Heard(again_s=0.01)  # a share of a stage is told when its time comes
    async with startup(registry) as it:
        stages = FetchStages(it)

        def fetch() -> None:
            stages.wait()
            stages.begin("a", 300)
            stages.begin("b", 100)
            stages.advance("a", 150)
            stages.advance("b", 100)
            stages.advance("b", -50)

        await asyncio.to_thread(fetch)
        await last_word(registry, "fetching the model", 0.5)
        it.enter("importing the rest")
        await last_word(registry, "importing the rest", None)

    told = {one.stage: one.fraction for one in registry.told[1:]}  # the last word of each
    assert list(told)[-2:] == ["fetching the model", "importing the rest"]
    assert told["fetching the model"] == 0.5


async def last_word(registry: Heard, stage: str, fraction: float | None) -> None:
    """Wait until that is what was told last: a busy machine takes its time."""
    async with asyncio.timeout(120):
        while (registry.told[-1].stage, registry.told[-1].fraction) != (stage, fraction):
            await asyncio.sleep(0.001)
