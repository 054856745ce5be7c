"""Greedy tokens do not depend on which rank has which experts."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
import torch
from tests.engine.rank_processes import RankProcesses, engine_on_ranks
from tests.engine.ranks import data_places
from tests.engine.ranks.data_places import DataPlaces, first_of, greedy, leave
from tests.engine.ranks.greedy_answers import CONFIG, MAX_TOKENS, PROMPTS, answers
from tests.engine.ranks.test_engine_on_ranks import prompt_logprobs
from tests.far_apart import with_wide
from tests.tiny_checkpoints import FAMILIES, transformers_greedy

from baton.core.errors import InvalidConfig
from baton.core.sampling import SamplingParams
from baton.engine.assemble import assemble_engine
from baton.engine.checkpoint.load import read_config
from baton.engine.config import EngineConfig
from baton.engine.mesh.mesh import Mesh
from baton.engine.request.request import Request
from baton.engine.sharding import expert_balancer
from baton.engine.sharding.cutting import share_of


def mesh_of(size: int, num_redundant: int = 0) -> Mesh:
    return Mesh(tensor=size, expert=size, redundant_experts=num_redundant)


CASES: dict[str, tuple[str, Mesh, dict[str, Any]]] = {
    "mixtral on two, which both have one of five": ("mixtral", mesh_of(2), {}),
    "mixtral on four": ("mixtral", mesh_of(4), {"num_local_experts": 8}),
    "qwen3 moe on four, with copies": ("qwen3 moe", mesh_of(4, 2), {}),
    "qwen2 moe, shared experts cut": ("qwen2 moe", mesh_of(2), {}),
    "gpt-oss, with biases": ("gpt-oss", mesh_of(2, 1), {}),
    "deepseek v3 on two": ("deepseek v3", mesh_of(2), {}),
    "deepseek v4 on two": ("deepseek v4", mesh_of(2), {}),
    "deepseek v3 on four, with a copy": ("deepseek v3", mesh_of(4, 1), {}),
}

FAR_APART = {
    "gpt-oss, with biases",
    "deepseek v3 on two",
}


@pytest.mark.parametrize("case", with_wide(CASES, FAR_APART))
def test_ranks_with_whole_experts_give_what_transformers_gives(
    case: str, ranks: RankProcesses, tmp_path: Path
) -> None:
    family, mesh, overrides = CASES[case]
    folder = FAMILIES[family](tmp_path, **overrides)
    expected = transformers_greedy(folder, PROMPTS, MAX_TOKENS)

    with engine_on_ranks(ranks, folder, CONFIG, mesh, dtype="float32") as (engine, followers):
        assert answers(engine) == expected

    assert [follower.outcome() for follower in followers] == [""] * (mesh.size - 1)


@pytest.mark.parametrize("quantize", ["int8", "int4"])
def test_whole_experts_are_rounded_as_finely_as_on_one_rank(
    quantize: str, ranks: RankProcesses, tmp_path: Path
) -> None:
    folder = FAMILIES["mixtral"](tmp_path, hidden_size=64, intermediate_size=64)
    exact, rounded = (
        prompt_logprobs(
            assemble_engine(folder, CONFIG, device="cpu", dtype="float32", quantize=how)
        )
        for how in ("none", quantize)
    )

    with engine_on_ranks(ranks, folder, CONFIG, mesh_of(2), dtype="float32", quantize=quantize) as (
        engine,
        _,
    ):
        found = prompt_logprobs(engine)

    error, usual = (found - exact).abs().mean(), (rounded - exact).abs().mean()
    assert 0 < error < 1.5 * usual


def test_a_rank_keeps_no_experts_but_its_own(tmp_path: Path) -> None:
    config = read_config(FAMILIES["mixtral"](tmp_path, num_local_experts=8))

    shares = [config, *(share_of(config, mesh_of(size, 1)) for size in (2, 4))]

    found = [share.layers[0].moe for share in shares]
    assert [each and each.num_slots for each in found] == [None, 5, 3]
    assert len({each and each.expert_width for each in found}) == 1


def test_what_cannot_be_spread_is_refused_with_the_reason(tmp_path: Path) -> None:
    dense = read_config(FAMILIES["llama"](tmp_path / "dense"))
    mixtral = read_config(FAMILIES["mixtral"](tmp_path / "mixtral"))

    with pytest.raises(InvalidConfig, match="this model has no experts"):
        share_of(dense, mesh_of(2))
    with pytest.raises(InvalidConfig, match="2 more are all there are"):
        share_of(mixtral, mesh_of(2, 3))


@pytest.mark.parametrize(
    ("family", "mesh", "options"),
    [
        ("mixtral", mesh_of(2, 1), {"num_local_experts": 8}),
        pytest.param("deepseek v3", mesh_of(4, 1), {}, marks=pytest.mark.wide),
        ("qwen3 moe", replace(mesh_of(2), pipeline=2), {}),
    ],
)
def test_experts_are_moved_while_requests_run_and_nobody_can_tell(
    family: str, mesh: Mesh, options: dict[str, Any], ranks: RankProcesses, tmp_path: Path
) -> None:
    folder = FAMILIES[family](tmp_path, **options)
    expected = transformers_greedy(folder, PROMPTS, MAX_TOKENS)
    exact = prompt_logprobs(assemble_engine(folder, CONFIG, device="cpu", dtype="float32"))

    restless = replace(CONFIG, rebalance_passes=4)
    with engine_on_ranks(ranks, folder, restless, mesh, dtype="float32") as (engine, followers):
        load = engine.stats.expert_load
        assert load is not None
        assert answers(engine) == expected
        was_moved = load.num_moved
        torch.testing.assert_close(prompt_logprobs(engine), exact, atol=1e-5, rtol=0)
        assert answers(engine) == expected

    assert was_moved > 0
    assert [follower.outcome() for follower in followers] == [""] * (mesh.size - 1)


def test_skewed_routing_becomes_even(ranks: RankProcesses, tmp_path: Path) -> None:
    """The same prompt over and over, so that the next look sees what the last one saw."""
    folder = FAMILIES["qwen3 moe"](tmp_path, num_experts=16, num_experts_per_tok=2)
    cache = replace(CONFIG.cache, prefix_caching=False)
    scheduler = replace(CONFIG.scheduler, prefill_chunk=None)
    config = EngineConfig(cache=cache, scheduler=scheduler, rebalance_passes=4)

    found = []
    with engine_on_ranks(ranks, folder, config, mesh_of(4, 2), dtype="float32") as (engine, _):
        for _ in range(10):
            prompt_logprobs(engine)
            found.append(engine.stats.as_metrics()["expert_load_max_over_mean"])

    assert found[3] > 1.3
    assert found[9] < 1.1


def test_a_rank_that_dies_while_experts_move_fails_the_step(
    ranks: RankProcesses, tmp_path: Path
) -> None:
    folder = FAMILIES["mixtral"](tmp_path)
    restless = replace(CONFIG, rebalance_passes=1)
    with engine_on_ranks(ranks, folder, restless, mesh_of(2), dtype="float32") as (engine, others):
        sampling = SamplingParams(temperature=0.0, max_tokens=100, ignore_eos=True)
        engine.add(Request("one", PROMPTS[1], sampling=sampling))
        engine.step()

        others[0].process.kill()
        others[0].process.join()

        with pytest.raises(RuntimeError):
            for _ in range(5):
                engine.step()


def test_where_nothing_is_moved_the_load_is_told_all_the_same(
    ranks: RankProcesses, tmp_path: Path
) -> None:
    folder = FAMILIES["mixtral"](tmp_path, num_local_experts=8)
    with (
        patch.object(expert_balancer, "LOOK_PASSES", 3),
        engine_on_ranks(ranks, folder, CONFIG, mesh_of(2), dtype="float32") as (engine, _),
    ):
        answers(engine)
        metrics = engine.stats.as_metrics()

    assert metrics["expert_load_max_over_mean"] > 1
    assert metrics["expert_load_looks_total"] > 1
    assert metrics["experts_moved_total"] == 0


def test_engines_that_share_experts_move_them_together(places: DataPlaces, tmp_path: Path) -> None:
    folder = FAMILIES["mixtral"](tmp_path, num_local_experts=8)
    own, others = [PROMPTS[1]], PROMPTS[2:4]
    expected = transformers_greedy(folder, [*own, *others], data_places.MAX_TOKENS)

    mesh = Mesh(data=2, expert=2, redundant_experts=1)
    restless = replace(CONFIG, rebalance_passes=3)
    with first_of(places, folder, restless, mesh, [others], dtype="float32") as (engine, [other]):
        found = greedy(engine, own, data_places.MAX_TOKENS)
        leave(engine)

    load = engine.stats.expert_load
    assert load is not None and load.num_moved > 0
    assert [*found, *other.outcome()] == expected
