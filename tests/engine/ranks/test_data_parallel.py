"""Engines that share experts answer as one rank does, whatever the others have to do."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path

import pytest
from tests.engine.ranks.data_places import MAX_TOKENS, DataPlaces, Prompts, first_of, greedy, leave
from tests.far_apart import with_wide
from tests.tiny_checkpoints import FAMILIES, VOCAB_SIZE, transformers_greedy

from baton.core.errors import InvalidConfig
from baton.engine.checkpoint.load import read_config
from baton.engine.config import CacheConfig, EngineConfig, SchedulerConfig
from baton.engine.mesh.mesh import Mesh
from baton.engine.sharding.cutting import share_of

CONFIG = EngineConfig(
    cache=CacheConfig(block_size=4, num_blocks=64),
    scheduler=SchedulerConfig(prefill_chunk=7, max_batch_tokens=64),
)
RNG = random.Random(5)


def some_prompts(*lengths: int) -> Prompts:
    return [[RNG.randrange(2, VOCAB_SIZE) for _ in range(length)] for length in lengths]


FEW, MANY = some_prompts(3), some_prompts(1, 9, 22, 30, 12)


RESTLESS = replace(
    CONFIG, scheduler=replace(CONFIG.scheduler, async_scheduling="on"), rebalance_passes=3
)
CASES: dict[str, tuple[str, Mesh, EngineConfig]] = {
    "mixtral, DP2 x EP2": ("mixtral", Mesh(data=2, expert=2), CONFIG),
    "mixtral, async, with copies that move": (
        "mixtral",
        Mesh(data=2, expert=2, redundant_experts=1),
        RESTLESS,
    ),
    "deepseek v3, DP2 x EP2": ("deepseek v3", Mesh(data=2, expert=2), CONFIG),
    "deepseek v4, DP2 x EP2": ("deepseek v4", Mesh(data=2, expert=2), CONFIG),
    "qwen3 moe, DP2 x TP2 x EP4": ("qwen3 moe", Mesh(data=2, tensor=2, expert=4), CONFIG),
    "llama4, whose inputs are scaled, DP2 x EP2": ("llama4", Mesh(data=2, expert=2), CONFIG),
    "gpt-oss, with biases, DP3 x EP3": ("gpt-oss", Mesh(data=3, expert=3), CONFIG),
}

FAR_APART = {
    "mixtral, async, with copies that move",
    "deepseek v4, DP2 x EP2",
}


@pytest.mark.parametrize("case", with_wide(CASES, FAR_APART))
def test_each_engine_gives_what_transformers_gives(
    case: str, places: DataPlaces, tmp_path: Path
) -> None:
    family, mesh, config = CASES[case]
    folder = FAMILIES[family](tmp_path)
    expected = transformers_greedy(folder, [*FEW, *MANY], MAX_TOKENS)

    others = [MANY] + [()] * (mesh.data - 2)
    with first_of(places, folder, config, mesh, others, dtype="float32") as (engine, far):
        few = greedy(engine, FEW, MAX_TOKENS)
        leave(engine)

    assert few == expected[: len(FEW)]
    assert far[mesh.tensor - 1].outcome() == expected[len(FEW) :]
    rest = far[: mesh.tensor - 1] + far[mesh.tensor :]
    assert all(place.outcome() in (None, []) for place in rest)


@pytest.mark.parametrize(("own", "of_other"), [((), MANY), (MANY, ())])
def test_an_engine_that_has_nothing_to_do_lets_the_other_compute(
    own: Prompts, of_other: Prompts, places: DataPlaces, tmp_path: Path
) -> None:
    folder, mesh = FAMILIES["mixtral"](tmp_path), Mesh(data=2, expert=2)
    expected = transformers_greedy(folder, MANY, MAX_TOKENS)

    with first_of(places, folder, CONFIG, mesh, [of_other], dtype="float32") as (engine, far):
        found = greedy(engine, own, MAX_TOKENS)
        leave(engine)

    assert (found, far[0].outcome()) == (expected if own else [], expected if of_other else [])


def test_a_data_rank_that_dies_fails_the_others_next_pass(
    places: DataPlaces, tmp_path: Path
) -> None:
    folder, mesh = FAMILIES["mixtral"](tmp_path), Mesh(data=2, expert=2)
    with first_of(places, folder, CONFIG, mesh, [()]) as (engine, [place]):
        greedy(engine, FEW, 3)

        place.process.kill()
        place.process.join()

        with pytest.raises(RuntimeError):
            greedy(engine, FEW, MAX_TOKENS)


def test_what_engines_cannot_share_is_refused_with_the_reason(tmp_path: Path) -> None:
    mixtral, llama = (read_config(FAMILIES[name](tmp_path / name)) for name in ("mixtral", "llama"))

    share_of(mixtral, Mesh(data=2, tensor=2, expert=4))
    with pytest.raises(InvalidConfig, match=r"set expert to 4, .* use more replicas"):
        share_of(mixtral, Mesh(data=2, tensor=2, expert=2))
    with pytest.raises(InvalidConfig, match="how each cuts its passes"):
        share_of(mixtral, Mesh(data=2, pipeline=2, expert=2))
    with pytest.raises(InvalidConfig, match="this model has no experts"):
        share_of(llama, Mesh(data=2, expert=2))
