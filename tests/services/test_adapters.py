"""The adapter that a request names computes all of it, on whichever replicas it runs."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.engine.adapted_answers import MAX_TOKENS, NAMES, PROMPTS, adapted
from tests.in_process_fleet import GREEDY, VOCAB_SIZE, Fleet, running_fleet
from tests.services.migrating import LONG, PROMPT, ask_and_drain

from baton.core.errors import InvalidRequest
from baton.core.messages import Pooling
from baton.core.replicas import Role
from baton.engine.assemble import assemble_engine
from baton.engine.batch.batch import Chunk
from baton.engine.config import CacheConfig, EngineConfig
from baton.engine.engine import Engine
from baton.engine.passes.echo import EchoRunner, echo_info
from baton.gateway.access.cache_salt import CacheSalts

SALTS = CacheSalts("")


def under(adapter: str) -> dict[str, Any]:
    """A request's adapter, and its salt, as a gateway has them."""
    return {"adapter": adapter, "salt": SALTS.salt("", "", adapter)}


class Watched:
    """Makes engines that know two adapters, and notes under which of them tokens are run."""

    def __init__(self) -> None:
        self.run: defaultdict[Role, set[int]] = defaultdict(set)

    def __call__(self, role: Role) -> Engine:
        info = replace(echo_info(vocab_size=VOCAB_SIZE, max_model_len=2048), adapters=("fr", "sql"))
        runner = EchoRunner(info, num_blocks=256, block_size=4)
        config = EngineConfig(cache=CacheConfig(block_size=4, num_blocks=256))
        forward = runner.forward

        def noted(chunks: Sequence[Chunk], *args: Any) -> Any:
            self.run[role] |= {chunk.adapter for chunk in chunks}
            return forward(chunks, *args)

        runner.forward = noted  # type: ignore[assignment, method-assign]
        return Engine(runner, config)


@pytest.mark.parametrize("options", [{}, {"pooling": Pooling.MEAN}], ids=["text", "vector"])
async def test_both_replicas_compute_under_the_adapter_and_the_receipt_names_it(
    options: dict[str, Any],
) -> None:
    make_engine = Watched()
    async with running_fleet(make_engine=make_engine) as fleet:
        answer = await fleet.ask(PROMPT, **under("sql"), **options)

        found = make_engine.run
        assert found[Role.DECODE] == {2}
        assert found[Role.PREFILL] == (set() if options else {2})
        assert answer.receipt.adapter == "sql"
        told = [one.adapter for one in fleet.dispatcher.decisions]
        assert told == ["sql"]

        assert (await fleet.ask(PROMPT)).receipt.adapter == ""


async def test_a_request_that_moves_keeps_its_adapter() -> None:
    make_engine = Watched()
    async with running_fleet(prefill=1, decode=2, make_engine=make_engine) as fleet:
        answer, _ = await ask_and_drain(fleet, LONG, **under("fr"))

    assert answer.receipt.attempts == 2 and answer.receipt.adapter == "fr"
    assert [*make_engine.run.values()] == [{1}, {1}]


@pytest.mark.parametrize("prefill", [0, 1])
async def test_a_replica_without_the_adapter_refuses_rather_than_answer_as_the_model(
    prefill: int,
) -> None:
    async with running_fleet(prefill=prefill) as fleet:
        with pytest.raises(InvalidRequest, match="adapter `sql`, which this replica does not have"):
            await fleet.ask(PROMPT, **under("sql"))
        await fleet.assert_nothing_is_held()


async def ask_all(fleet: Fleet) -> list[list[int]]:
    sampling = replace(GREEDY, max_tokens=MAX_TOKENS, ignore_eos=True)
    asked = [fleet.ask(prompt, sampling, **under(name)) for prompt in PROMPTS for name in NAMES]
    return [answer.tokens for answer in await asyncio.gather(*asked)]


def adapted_engines(base: Path, folders: dict[str, Path]) -> Callable[[Role], Engine]:
    config = EngineConfig(cache=CacheConfig(block_size=4, num_blocks=256))
    return lambda role: assemble_engine(base, config, dtype="float32", adapters=folders)


async def test_handed_over_and_cached_kv_is_that_of_the_adapter(tmp_path: Path) -> None:
    base, folders, expected = adapted("llama", tmp_path)

    async with running_fleet(make_engine=adapted_engines(base, folders)) as fleet:
        assert await ask_all(fleet) == expected
        assert await ask_all(fleet) == expected  # from the prefix caches
