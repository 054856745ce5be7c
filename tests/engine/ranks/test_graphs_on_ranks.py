"""Passes of tensor ranks as graphs: each rank replays its own, and their sums are in them.

CUDA's part is played by `ComputingCapture`; the ranks are threads of this process, over Gloo.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from tests.engine.computing_capture import graphs_of, mixed_graphs_of
from tests.engine.model_runs import make_prompt
from tests.engine.ranks.greedy_answers import CONFIG
from tests.engine.ranks.two_ranks import on_two_ranks
from tests.engine.test_cache_plan import PretendedGpu
from tests.tiny_checkpoints import FAMILIES
from torch import Tensor

from baton.engine.batch.batch import Chunk
from baton.engine.batch.decoding import Decoding
from baton.engine.batch.static_batch import GraphSize, PassLimits
from baton.engine.cache_plan import plan_cache
from baton.engine.checkpoint.load import load_model
from baton.engine.mesh.ranks import MeshGroups
from baton.engine.passes.cuda_graphs import DecodeGraphs
from baton.engine.passes.mixed_graphs import MixedGraphs
from baton.engine.passes.runner import ModelRunner
from baton.engine.ranks import lead
from baton.engine.ranks.assemble import following_runner, lead_runner
from baton.engine.ranks.lead import LeadRunner, follow

LIMITS = PassLimits(max_tokens=16, max_requests=4, max_blocks=8)
SPARE_BLOCK = 40


def decoded(runner: LeadRunner) -> Tensor:
    """Logits of three requests, in passes of chunks and then in turns of a decoding."""
    tables = [list(range(8 * row, 8 * row + 8)) for row in range(3)]
    for row, table in enumerate(tables):
        runner.forward([Chunk(make_prompt(5 + row, row), 0, table, 0)])
    decoding = Decoding([3, 4, 5], [5, 6, 7], tables, [0, 1, 2])
    found = [runner.logits(runner.forward(list(decoding))).clone()]
    for turn in range(3):
        found.append(runner.logits(runner.forward(decoding)).clone())
        decoding.next_turn([turn, 7, 9], range(3))
    return torch.stack(found)


@pytest.mark.parametrize("family", ["llama", "deepseek v3"])
def test_ranks_replay_what_they_compute(
    family: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = FAMILIES[family](tmp_path)
    replayed: list[GraphSize] = []
    forward = DecodeGraphs.forward

    def counted(graphs: DecodeGraphs, chunks: list[Chunk], size: GraphSize) -> Tensor:
        replayed.append(size)
        return forward(graphs, chunks, size)

    monkeypatch.setattr(DecodeGraphs, "forward", counted)
    of_prompts: list[int] = []
    forward_prompts = MixedGraphs.forward

    def counted_prompts(graphs: MixedGraphs, chunks: list[Chunk], size: int) -> Tensor:
        of_prompts.append(size)
        return forward_prompts(graphs, chunks, size)

    monkeypatch.setattr(MixedGraphs, "forward", counted_prompts)

    def capture(own: ModelRunner) -> None:
        own.graphs = graphs_of(own, LIMITS, SPARE_BLOCK)
        own.mixed = mixed_graphs_of(own, replace(LIMITS, max_tokens=32), SPARE_BLOCK)

    def run(groups: MeshGroups) -> list[Tensor]:
        loaded = load_model(folder, dtype="float32", groups=groups)
        plan = plan_cache(loaded, CONFIG, "cpu").with_blocks(SPARE_BLOCK + 1)
        is_lead = groups.everyone.rank == 0
        runner = lead_runner(loaded, plan) if is_lead else following_runner(loaded, plan)
        own: ModelRunner = runner.own if isinstance(runner, LeadRunner) else runner
        if not isinstance(runner, LeadRunner):
            follow(runner)
            capture(own)
            follow(runner)
            return []
        computed = decoded(runner)
        runner.close()
        capture(own)
        monkeypatch.setattr(lead, "head_words", None)  # of the head nobody is told any more
        found = decoded(runner)
        runner.close()
        return [computed, found]

    [(computed, found), _] = on_two_ranks(run)

    assert replayed == [GraphSize(4)] * 8, "four passes of three requests, on both ranks"
    assert of_prompts == [32] * 6, "their prompts"
    assert torch.equal(computed, found)


def test_ranks_capture_what_all_of_them_have_room_for(tmp_path: Path) -> None:
    folder = FAMILIES["llama"](tmp_path)

    def run(groups: MeshGroups) -> tuple[tuple[object, ...], int]:
        loaded = load_model(folder, dtype="float32", groups=groups)
        costly = (1 << 30) if groups.everyone.rank else 50_000
        gpu = PretendedGpu(first_graph_bytes=costly)
        plan = plan_cache(loaded, CONFIG, "cuda", gpu)
        return (plan.graph_sizes, plan.mixed_sizes), len(gpu.notes)

    (sizes, num_tried), (others, num_tried_there) = on_two_ranks(run)

    assert sizes == others and all(sizes)
    assert num_tried == num_tried_there == 3
