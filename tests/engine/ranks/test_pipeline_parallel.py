"""Greedy tokens do not depend on how many stages compute them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from bench.quantization.checkpoint_writer import LAYOUTS, write_layout
from tests.engine.rank_processes import RankProcesses, engine_on_ranks
from tests.engine.ranks.greedy_answers import CONFIG, MAX_TOKENS, PROMPTS, answers
from tests.far_apart import with_wide
from tests.in_process_fleet import running_fleet
from tests.tiny_checkpoints import FAMILIES, transformers_greedy

from baton.core.replicas import Role
from baton.core.sampling import SamplingParams
from baton.engine.assemble import assemble_engine
from baton.engine.batch.batch import Chunk
from baton.engine.config import EngineConfig
from baton.engine.engine import Engine
from baton.engine.mesh.mesh import Mesh
from baton.engine.request.request import Request

IN_PIECES = replace(CONFIG, scheduler=replace(CONFIG.scheduler, micro_batch_tokens=3))
STAGES = Mesh(pipeline=2)


CASES: dict[str, tuple[str, Mesh, dict[str, Any]]] = {
    "llama in two stages": ("llama", Mesh(pipeline=2), {}),
    "llama in three": ("llama", Mesh(pipeline=3), {"num_hidden_layers": 5}),
    "llama, two stages of two": ("llama", Mesh(tensor=2, pipeline=2), {}),
    "gemma2 in two, one table for both ends": ("gemma2", Mesh(pipeline=2), {}),
    "gpt2 in two, with learned positions": ("gpt2", Mesh(pipeline=2), {}),
    "falcon in two": ("falcon", Mesh(pipeline=2), {}),
    "qwen3 moe in two": ("qwen3 moe", Mesh(pipeline=2), {}),
    "mixtral, two stages of two": ("mixtral", Mesh(tensor=2, pipeline=2), {}),
    "deepseek v3 in two": ("deepseek v3", Mesh(pipeline=2), {}),
    "deepseek v3.2 in two": ("deepseek v3.2", Mesh(pipeline=2), {}),
    "glm moe dsa in two": ("glm moe dsa", Mesh(pipeline=2), {}),
    "deepseek v3, two stages of two": ("deepseek v3", Mesh(tensor=2, pipeline=2), {}),
    "qwen3 moe, two stages of two, whole experts": (
        "qwen3 moe",
        Mesh(tensor=2, pipeline=2, expert=2),
        {},
    ),
    "glm moe dsa in two, which begin with an index": ("glm moe dsa", STAGES, {}),
}

FAR_APART = {
    "gemma2 in two, one table for both ends",
    "qwen3 moe, two stages of two, whole experts",
    "glm moe dsa in two, which begin with an index",
}


@pytest.mark.parametrize("case", with_wide(CASES, FAR_APART))
def test_several_stages_give_what_transformers_gives(
    case: str, ranks: RankProcesses, tmp_path: Path
) -> None:
    family, mesh, overrides = CASES[case]
    folder = FAMILIES[family](tmp_path, **overrides)
    expected = transformers_greedy(folder, PROMPTS, MAX_TOKENS)

    for config in (CONFIG, IN_PIECES):
        assert tokens(ranks, folder, config, mesh) == expected


def tokens(ranks: RankProcesses, folder: Path, config: EngineConfig, mesh: Mesh) -> list[list[int]]:
    on_ranks = engine_on_ranks(ranks, folder, config, mesh, dtype="float32")
    with on_ranks as (engine, followers):
        found = answers(engine)
        assert engine.pool.num_in_use == 0
    assert [follower.outcome() for follower in followers] == [""] * (mesh.size - 1)
    return found


def test_cutting_passes_changes_no_bit_of_the_kv(ranks: RankProcesses, tmp_path: Path) -> None:
    folder = FAMILIES["llama"](tmp_path)
    alone = assemble_engine(folder, CONFIG, dtype="float32", device="cpu")
    answers(alone)

    with engine_on_ranks(ranks, folder, IN_PIECES, STAGES, dtype="float32") as (engine, _):
        answers(engine)
        assert kv_of(engine) == kv_of(alone)


def test_what_comes_quantised_stays_so_on_each_stage(ranks: RankProcesses, tmp_path: Path) -> None:
    sizes = {"hidden_size": 128, "intermediate_size": 256}
    folder = write_layout(
        FAMILIES["llama"](tmp_path / "wide", **sizes), tmp_path / "quantized", LAYOUTS["gptq 4"]
    )
    alone = assemble_engine(folder, CONFIG, dtype="float32", device="cpu")
    expected = answers(alone)

    with engine_on_ranks(ranks, folder, IN_PIECES, STAGES, dtype="float32") as (engine, _):
        assert engine.info.fingerprint == alone.info.fingerprint
        assert answers(engine) == expected


def kv_of(engine: Engine) -> list[bytes]:
    cache = engine.runner.cache
    planes = range(cache.layout.num_planes)
    return [bytes(cache.view(block, p)) for block in range(cache.num_blocks) for p in planes]


def test_a_layer_is_told_of_when_all_of_its_kv_is_written(
    ranks: RankProcesses, tmp_path: Path
) -> None:
    folder = FAMILIES["llama"](tmp_path, num_hidden_layers=5)
    with engine_on_ranks(ranks, folder, IN_PIECES, Mesh(pipeline=3), dtype="float32") as (
        engine,
        _,
    ):
        cache = engine.runner.cache
        chunks = [Chunk(PROMPTS[3], 0, range(8), 1), Chunk(PROMPTS[1], 0, range(8, 11), 0)]
        told: dict[int, list[bytes]] = {}

        def look(layer: int) -> None:
            told[layer] = [bytes(cache.view(block, layer)) for block in range(11)]

        engine.runner.forward(chunks, look)

        assert list(told) == list(range(5))
        for layer, found in told.items():
            look(layer)
            assert told[layer] == found
            assert all(any(block) for block in found)


def test_a_stage_that_dies_fails_the_step_at_once(ranks: RankProcesses, tmp_path: Path) -> None:
    folder = FAMILIES["llama"](tmp_path, num_hidden_layers=3)
    with engine_on_ranks(ranks, folder, CONFIG, Mesh(pipeline=3)) as (engine, [_, last]):
        sampling = SamplingParams(temperature=0.0, max_tokens=100, ignore_eos=True)
        engine.add(Request("one", PROMPTS[0], sampling=sampling))
        engine.step()

        last.process.kill()
        last.process.join()

        with pytest.raises(RuntimeError):
            for _ in range(5):
                engine.step()


@pytest.mark.parametrize("family", ["llama", "deepseek v3"])
@pytest.mark.parametrize("staged", [Role.PREFILL, Role.DECODE], ids=["staged P", "staged D"])
async def test_stages_hand_their_kv_over_and_take_it(
    staged: Role, family: str, ranks: RankProcesses, tmp_path: Path
) -> None:
    folder = FAMILIES[family](tmp_path)
    expected = transformers_greedy(folder, PROMPTS, MAX_TOKENS)
    sampling = SamplingParams(temperature=0.0, max_tokens=MAX_TOKENS)

    with engine_on_ranks(ranks, folder, IN_PIECES, STAGES, dtype="float32") as (several, _):

        def engine_of(role: Role) -> Engine:
            if role is staged:
                return several
            return assemble_engine(folder, CONFIG, dtype="float32", device="cpu")

        changes = {"transfer.transport": "grpc"}
        async with running_fleet(prefill=1, make_engine=engine_of, changes=changes) as fleet:
            found = [await fleet.ask(prompt, sampling) for prompt in PROMPTS]
            hits = [await fleet.ask(prompt, sampling) for prompt in PROMPTS]
            await fleet.assert_nothing_is_held()

    assert [answer.tokens for answer in found] == expected
    assert [answer.tokens for answer in hits] == expected
    assert any(answer.receipt.kv_bytes for answer in found)
