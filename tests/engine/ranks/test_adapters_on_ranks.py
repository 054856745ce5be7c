"""Greedy answers with adapters are PEFT's on any ranks."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.engine.adapted_answers import adapted, answers
from tests.engine.rank_processes import RankProcesses, engine_on_ranks
from tests.engine.ranks.greedy_answers import CONFIG
from tests.far_apart import with_wide

from baton.engine.mesh.mesh import Mesh

MESHES = {
    "tensor": Mesh(tensor=2),
    "pipeline": Mesh(pipeline=2),
    "context": Mesh(context=2),
    "tensor, more than KV heads": Mesh(tensor=4),
}


@pytest.mark.parametrize("mesh", with_wide(MESHES, {"tensor", "pipeline"}))
def test_ranks_answer_as_peft_does(mesh: str, ranks: RankProcesses, tmp_path: Path) -> None:
    base, folders, expected = adapted("llama", tmp_path)
    with engine_on_ranks(ranks, base, CONFIG, MESHES[mesh], dtype="float32", adapters=folders) as (
        engine,
        _,
    ):
        assert answers(engine) == expected
