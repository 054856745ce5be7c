"""KV whose full blocks have 4 bits, on its other ways: to a replica that takes over, to tiers and
back. What was open is computed again; no token changes."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from tests.in_process_fleet import Fleet, running_fleet
from tests.services.migrating import busy, slow_down
from tests.services.test_kv_dtypes import BLOCK_SIZE, SAMPLING, both, engines
from tests.services.test_tiers import total, written_back
from tests.tiny_checkpoints import VOCAB_SIZE, make_llama

from baton.core.ids import ReplicaId

PROMPT = [(7 * place) % (VOCAB_SIZE - 3) + 2 for place in range(8 * BLOCK_SIZE + 3)]
LONG = replace(SAMPLING, max_tokens=60)


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_llama(tmp_path_factory.mktemp("checkpoint"))


async def test_who_takes_over_a_running_request_goes_on_from_its_full_blocks(
    checkpoint: Path,
) -> None:
    # However late it moves: half of the blocks may be lent and leased, and it has 24 at its end.
    make_engine = engines(checkpoint, both("int4"), num_blocks=64)
    async with running_fleet(prefill=0, decode=1, make_engine=make_engine) as fleet:
        undisturbed = await fleet.ask(PROMPT, LONG)
    async with running_fleet(prefill=1, decode=2, make_engine=make_engine) as fleet:
        drained: list[ReplicaId] = []

        async def on_token(num_tokens: int) -> None:
            if num_tokens >= 9 and not drained:
                drained.extend(busy(fleet))
                slow_down(fleet.engines[drained[0]])
                await fleet.dispatcher.drain(drained[0], is_forced=False)
                go_on()

        with fleet.halting_at(9) as go_on:
            moved = await fleet.ask(PROMPT, LONG, on_token=on_token)
        await fleet.assert_nothing_is_held()

    assert moved.tokens == undisturbed.tokens
    assert moved.receipt.attempts == 2
    assert moved.receipt.pulled_tokens >= len(PROMPT)


async def test_full_blocks_in_four_bits_come_back_from_a_tier(
    checkpoint: Path, tmp_path: Path
) -> None:
    make_engine = engines(checkpoint, both("int4"), num_blocks=40)
    prompts = [[*PROMPT[start:], *PROMPT[:start], start + 2] * 2 for start in range(4)]
    settings = {
        "tiers.min_tokens": BLOCK_SIZE,
        "tiers.deadline_s": 30.0,
        "tiers.disk.folder": str(tmp_path),
    }

    async def ask_all(fleet: Fleet) -> list[list[int]]:
        found = []
        for prompt in prompts:
            found.append((await fleet.ask(prompt, SAMPLING)).tokens)
            await written_back(fleet)
        return found

    async with running_fleet(prefill=0, make_engine=make_engine, changes=settings) as fleet:
        cold = await ask_all(fleet)
        returning = await ask_all(fleet)

        assert returning == cold
        assert total(fleet, "tier_tokens_brought_in_total") > 0
        await fleet.assert_nothing_is_held()
