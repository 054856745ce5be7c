"""Greedy answers with adapters are PEFT's on any ranks."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.engine.adapted_answers import MODULES, adapted, answers
from tests.engine.rank_processes import RankProcesses, engine_on_ranks
from tests.engine.ranks.greedy_answers import CONFIG
from tests.far_apart import with_wide

from baton.engine.mesh.mesh import Mesh

FALCON = ("dense", "dense_h_to_4h", "dense_4h_to_h", "query_key_value")
CASES = {
    "tensor": ("llama", MODULES, Mesh(tensor=2)),
    "tensor, more than KV heads": ("llama", MODULES, Mesh(tensor=4)),
    "tensor, fused": ("phi3", ("o_proj", "down_proj", "gate_up_proj", "qkv_proj"), Mesh(tensor=2)),
    "tensor, transposed": ("gpt2", ("c_proj", "c_fc", "c_attn"), Mesh(tensor=2)),
    "tensor, sums of two layers": ("new falcon", FALCON, Mesh(tensor=2)),
    "pipeline": ("llama", MODULES, Mesh(pipeline=2)),
    "context": ("llama", MODULES, Mesh(context=2)),
}


@pytest.mark.parametrize("case", with_wide(CASES, {"tensor", "pipeline"}))
def test_ranks_answer_as_peft_does(case: str, ranks: RankProcesses, tmp_path: Path) -> None:
    family, modules, mesh = CASES[case]
    base, folders, expected = adapted(family, tmp_path, modules)
    with engine_on_ranks(ranks, base, CONFIG, mesh, dtype="float32", adapters=folders) as (
        engine,
        _,
    ):
        assert answers(engine) == expected
