"""Greedy tokens do not depend on how many ranks compute them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.engine.rank_processes import RankProcesses, engine_on_ranks
from tests.engine.ranks.greedy_answers import CONFIG, MAX_TOKENS, PROMPTS, answers
from tests.far_apart import with_wide
from tests.tiny_checkpoints import FAMILIES, VOCAB_SIZE, transformers_greedy

from baton.core.errors import InvalidConfig
from baton.core.sampling import SamplingParams
from baton.engine.checkpoint.load import read_config
from baton.engine.mesh.mesh import Mesh
from baton.engine.request.request import Request
from baton.engine.sharding.cutting import share_of

CASES: dict[str, tuple[str, int, dict[str, Any]]] = {
    "llama on two": ("llama", 2, {}),
    "llama on four, two of them with each KV head": ("llama", 4, {}),
    "gemma2 on two": ("gemma2", 2, {}),
    "phi3 on two": ("phi3", 2, {}),
    "gpt2 on two, an odd vocabulary on each": ("gpt2", 2, {"vocab_size": VOCAB_SIZE + 1}),
    "falcon on two": ("falcon", 2, {}),
    "new falcon on two": ("new falcon", 2, {}),
    "mixtral on two": ("mixtral", 2, {}),
    "qwen2 moe on two": ("qwen2 moe", 2, {}),
    "gpt-oss on two": ("gpt-oss", 2, {}),
    "deepseek v2 on two": ("deepseek v2", 2, {}),
    "deepseek v3 on four": ("deepseek v3", 4, {}),
    "deepseek v4 on two": ("deepseek v4", 2, {}),
    "deepseek v3.2 on two": ("deepseek v3.2", 2, {}),
    "glm moe dsa on four": ("glm moe dsa", 4, {}),
}

FAR_APART = {
    "gpt2 on two, an odd vocabulary on each",
    "gpt-oss on two",
    "deepseek v3.2 on two",
}


@pytest.mark.parametrize("case", with_wide(CASES, FAR_APART))
def test_several_ranks_give_what_transformers_gives(
    case: str, ranks: RankProcesses, tmp_path: Path
) -> None:
    family, size, overrides = CASES[case]
    folder = FAMILIES[family](tmp_path, **overrides)
    expected = transformers_greedy(folder, PROMPTS, MAX_TOKENS)

    with engine_on_ranks(ranks, folder, CONFIG, Mesh(tensor=size), dtype="float32") as (
        engine,
        followers,
    ):
        assert answers(engine) == expected
        assert engine.pool.num_in_use == 0

    assert [follower.outcome() for follower in followers] == [""] * (size - 1)


def test_a_rank_that_dies_fails_the_step_at_once(ranks: RankProcesses, tmp_path: Path) -> None:
    folder = FAMILIES["llama"](tmp_path)
    with engine_on_ranks(ranks, folder, CONFIG, Mesh(tensor=2)) as (engine, [follower]):
        sampling = SamplingParams(temperature=0.0, max_tokens=100, ignore_eos=True)
        engine.add(Request("one", PROMPTS[0], sampling=sampling))
        engine.step()

        follower.process.kill()
        follower.process.join()

        with pytest.raises(RuntimeError):
            for _ in range(5):
                engine.step()


def test_ranks_that_loaded_another_model_are_refused(ranks: RankProcesses, tmp_path: Path) -> None:
    folder, other = (
        FAMILIES["llama"](tmp_path / name, seed=seed) for name, seed in (("a", 0), ("b", 1))
    )
    refused = pytest.raises(InvalidConfig, match=r"ranks \[1\] loaded a different model")
    with refused, engine_on_ranks(ranks, folder, CONFIG, Mesh(tensor=2), follower_folder=other):
        pass


def test_what_cannot_be_split_is_refused_with_the_reason(tmp_path: Path) -> None:
    config = read_config(FAMILIES["llama"](tmp_path))

    with pytest.raises(InvalidConfig, match="must divide `num_attention_heads`, which is 4"):
        share_of(config, Mesh(tensor=8))
    with pytest.raises(InvalidConfig, match="2 KV heads; the number of ranks must divide it"):
        share_of(config, Mesh(tensor=3))
