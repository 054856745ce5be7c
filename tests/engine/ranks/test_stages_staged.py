"""A lead whose GPU goes on by itself: what waits for what it has launched (`OrderedCuda`)."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from tests.engine.memory.ordered_cuda import pretend
from tests.engine.ranks.greedy_answers import CONFIG
from tests.engine.ranks.two_ranks import on_two_ranks
from tests.tiny_checkpoints import make_llama
from torch import Tensor

from baton.engine.batch.batch import Chunk
from baton.engine.cache_plan import plan_cache
from baton.engine.checkpoint.load import load_model
from baton.engine.memory.kv_staging import KvStaging
from baton.engine.mesh.mesh import Mesh
from baton.engine.mesh.ranks import MeshGroups
from baton.engine.ranks.assemble import following_runner, lead_runner
from baton.engine.ranks.lead import follow


def test_layers_of_the_first_stage_are_read_once_they_are_computed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cuda, folder = pretend(monkeypatch), make_llama(tmp_path)
    seen: list[set[str]] = []
    awaited: list[set[str]] = []

    def gather(numbers: Tensor) -> Tensor:
        seen.append(cuda.predecessors())
        return torch.zeros(len(numbers), 8, dtype=torch.uint8)

    def run(groups: MeshGroups) -> int:
        loaded = load_model(folder, dtype="float32", groups=groups)
        plan = plan_cache(loaded, CONFIG, "cpu").with_blocks(8)
        if groups.everyone.rank:
            follow(following_runner(loaded, plan))
            return 0
        runner = lead_runner(loaded, plan)
        own = runner.own.cache
        staging = own.staging = KvStaging(own.planes, own.layout)
        num_own = own.layout.num_planes

        def read(layer: int) -> None:
            awaited.append(cuda.awaited())
            if layer < num_own:
                staging.read((1,), range(layer, layer + 1), gather)

        cuda.launch("clear")
        runner.cache.clear((2,), 0)
        cuda.launch("pass")
        runner.forward([Chunk([1, 2, 3], 0, [1], 1)], read)
        runner.close()
        return num_own

    num_own, _ = on_two_ranks(run, Mesh(pipeline=2))

    assert seen == [{"clear", "pass"}] * num_own and num_own
    assert awaited[0] == {"clear"}, "the other stage may write where the lead has cleared"
