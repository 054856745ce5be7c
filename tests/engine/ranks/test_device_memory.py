"""Ranks whose KV lies on devices of their own: the lead opens what each of them has left word of.

The devices are this CPU under another name; the ranks are threads of this process, over Gloo.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from tests.engine.ranks.greedy_answers import CONFIG
from tests.engine.ranks.two_ranks import on_two_ranks
from tests.tiny_checkpoints import FAMILIES
from torch import Tensor

from baton.engine.cache_plan import plan_cache
from baton.engine.checkpoint.load import load_model
from baton.engine.mesh.ranks import MeshGroups
from baton.engine.ranks import assemble
from baton.engine.ranks.assemble import following_runner, lead_runner
from baton.engine.ranks.lead import follow

NAME_OF_A_DEVICE = "cpu:0"
shared: list[Tensor] = []


def opened(number: int) -> Tensor:
    return shared[number]


def test_ranks_begin_together_and_the_lead_writes_where_the_others_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = FAMILIES["llama"](tmp_path)

    def left(plane: Tensor) -> object:
        shared.append(plane)
        return opened, (len(shared) - 1,)

    monkeypatch.setattr(assemble, "reduce_tensor", left)

    def run(groups: MeshGroups) -> bool:
        loaded = load_model(folder, dtype="float32", groups=groups)
        plan = plan_cache(loaded, CONFIG, "cpu").with_blocks(4)
        plan = replace(plan, device=NAME_OF_A_DEVICE)
        if groups.everyone.rank:
            runner = following_runner(loaded, plan)
            follow(runner)
            return bool((runner.cache.planes[0][2] != 0).any())
        lead = lead_runner(loaded, plan)
        block = lead.cache.view(2, 0).nbytes
        lead.cache.write(2, 0, memoryview(bytes([1]) * block))
        lead.close()
        return True

    assert on_two_ranks(run) == [True, True]
