"""How many blocks a cache has room for: beside open ones on a CPU, and beside passes on a GPU."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection
from dataclasses import replace
from pathlib import Path
from typing import Literal
from weakref import finalize

import pytest
import torch
from tests.engine.computing_capture import ComputingCapture, Replay
from tests.tiny_checkpoints import make_llama, make_mixtral
from torch import Tensor

from baton.core.errors import InvalidConfig
from baton.core.kv_layout import KvLayout
from baton.engine.batch.static_batch import GraphSize, PassLimits
from baton.engine.cache_plan import plan_cache
from baton.engine.checkpoint.load import load_model
from baton.engine.config import CacheConfig, EngineConfig, SchedulerConfig, SpeculationConfig
from baton.engine.memory.kv_cache import KvCache
from baton.engine.memory.open_blocks import open_bytes
from baton.engine.passes import pass_memory
from baton.engine.passes.graph_capture import Outputs
from baton.engine.passes.graph_sizes import MAX_GRAPH_BYTES
from baton.engine.passes.pass_memory import estimated_bytes, largest_passes, measure
from baton.engine.sampling.sampler import Drawn, draw
from baton.engine.sampling.sampling_plan import SamplingPlan
from baton.kernels.attention.layer_kv import LayerKv
from baton.kernels.paging.int4_arena import Int4Arena

GIB = 1 << 30
MEMORY_BYTES = 1 << 20
IN_INT4 = EngineConfig(
    cache=CacheConfig(kv_dtype="int4", memory_gib=MEMORY_BYTES / GIB),
    scheduler=SchedulerConfig(max_running=10, max_batch_tokens=64),
)


def test_open_blocks_are_of_the_same_memory_as_full_ones(tmp_path: Path) -> None:
    loaded = load_model(make_llama(tmp_path))

    plan = plan_cache(loaded, IN_INT4, "cpu")

    cache = KvCache(plan.layout, plan.num_blocks, dtype=loaded.info.dtype, limits=plan.limits)
    kept = [layer.arena for layer in cache.layers if isinstance(layer, LayerKv)]
    arenas = [arena for arena in kept if isinstance(arena, Int4Arena)]
    beside = sum(arena.open_rows.nbytes for arena in arenas) + arenas[0].pass_rows.nbytes
    assert len(arenas) == plan.layout.num_layers
    assert beside == open_bytes(plan.layout, loaded.info.dtype, plan.limits)
    assert plan.num_blocks == (MEMORY_BYTES - beside) // plan.layout.block_bytes


def test_memory_that_open_blocks_fill_is_too_little(tmp_path: Path) -> None:
    crowded = replace(IN_INT4, scheduler=SchedulerConfig(max_running=1000))

    with pytest.raises(InvalidConfig, match="of open blocks"):
        plan_cache(load_model(make_llama(tmp_path)), crowded, "cpu")


def test_blocks_are_kept_in_four_bits_on_cpus_alone(tmp_path: Path) -> None:
    with pytest.raises(InvalidConfig, match="int4 is supported on CPUs only"):
        plan_cache(load_model(make_llama(tmp_path)), IN_INT4, "cuda")


class PretendedGpu:
    """Computes on the CPU; what is taken is made up. As on a GPU, what a pass gave back stays with
    the allocator, and is missing from the device, until that is emptied."""

    def __init__(
        self, *, has_room_for_a_pass: bool = True, first_graph_bytes: int = 50_000
    ) -> None:
        self.notes: list[str] = []
        self.graphs = CostlyCapture(self, first_graph_bytes, 1_000)
        self.graph_bytes = 0
        self.kept_bytes = 0
        self._has_room_for_a_pass = has_room_for_a_pass

    def free_bytes(self) -> int:
        self.kept_bytes = 0
        return self.seen_bytes()

    def seen_bytes(self) -> int:
        return 1_000_000 - self.graph_bytes - self.kept_bytes

    def peak_bytes(self, run: Callable[[], None]) -> int:
        if not self._has_room_for_a_pass:
            raise torch.OutOfMemoryError
        self.notes.append("pass")
        run()
        self.kept_bytes = 200_000
        return 200_000

    def scratch(
        self, layout: KvLayout, num_blocks: int, dtype: str, *, is_deterministic: bool
    ) -> KvCache:
        cache = KvCache(layout, num_blocks + 1, dtype=dtype, is_deterministic=is_deterministic)
        cache.spare_block = num_blocks
        return cache

    def capture(self) -> ComputingCapture:
        self.notes.append("graphs")
        return self.graphs


class CostlyCapture(ComputingCapture):
    """Its graphs take memory of a device for as long as they are."""

    def __init__(self, gpu: PretendedGpu, first_bytes: int, more_bytes: int) -> None:
        super().__init__()
        self._gpu = gpu
        self._first_bytes, self._more_bytes = first_bytes, more_bytes

    def __call__(self, run: Callable[[], Outputs]) -> tuple[Replay, Outputs]:
        self._gpu.kept_bytes = 0  # CUDA's begins so
        num_bytes = self._more_bytes if self.sizes else self._first_bytes
        graph, outputs = super().__call__(run)
        self._take(num_bytes)
        finalize(graph, self._take, -num_bytes)
        return graph, outputs

    def _take(self, num_bytes: int) -> None:
        self._gpu.graph_bytes += num_bytes


CROWD = EngineConfig(scheduler=SchedulerConfig(max_running=12, max_batch_tokens=40))


def test_kv_gets_its_fraction_of_what_the_largest_pass_and_its_graphs_leave(
    tmp_path: Path,
) -> None:
    gpu = PretendedGpu()

    plan = plan_cache(load_model(make_llama(tmp_path)), CROWD, "cuda", gpu)

    assert gpu.notes == ["pass", "pass", "graphs"]
    assert plan.limits.graph_sizes == tuple(map(GraphSize, (1, 2, 4, 8, 12)))
    each_row = 1_000 // 6  # more than that its outputs cannot have taken
    of_others = 4 * (1_000 - 6 * each_row) + (1 + 2 + 4 + 8) * each_row
    assert plan.limits.mixed_sizes == (32, 40)
    each_row = min(1_000 // 20, 4 * 64)
    of_mixed = 1_000 + (1_000 - 20 * each_row) + 32 * each_row
    left = 1_000_000 - 200_000 - (50_000 + of_others) - of_mixed
    assert plan.num_blocks == int(0.85 * left) // plan.layout.block_bytes
    assert gpu.graphs.sizes == [12, 6, 40, 20], "those with prompts while the others are there"


def test_rows_of_drafts_are_drawn_from_where_the_largest_pass_is_tried(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    nums_drawn: list[int] = []

    def counted(logits: Tensor, plan: SamplingPlan, eos_token_ids: Collection[int]) -> Drawn:
        nums_drawn.append(len(logits))
        return draw(logits, plan, eos_token_ids)

    monkeypatch.setattr(pass_memory, "draw", counted)
    loaded = load_model(make_llama(tmp_path))
    drafting = replace(CROWD, speculation=SpeculationConfig(method="suffix", max_tokens=2))

    for config in (CROWD, drafting):
        plan_cache(loaded, config, "cuda", PretendedGpu())

    assert nums_drawn == [12, 1, 36, 1, 36]
    few, many = (PassLimits(max_drafted=number) for number in (0, 100))
    of_drafts = estimated_bytes(loaded, many) - estimated_bytes(loaded, few)
    assert of_drafts >= 100 * 4 * loaded.info.vocab_size


def test_what_drafts_are_drawn_from_lies_beside_the_pass_that_judges_them(tmp_path: Path) -> None:
    loaded = load_model(make_llama(tmp_path))

    def num_blocks(method: Literal["suffix", "draft"], rule: Literal["draws", "published"]) -> int:
        speculation = SpeculationConfig(method=method, max_tokens=8, acceptance=rule)
        config = replace(CROWD, speculation=speculation)
        return plan_cache(loaded, config, "cuda", PretendedGpu()).num_blocks

    plain, drawn = num_blocks("draft", "draws"), num_blocks("draft", "published")
    block_bytes = loaded.info.layout(CROWD.cache.block_size, "auto").block_bytes
    of_draws = 12 * 8 * 4 * loaded.info.num_logits
    assert abs((plain - drawn) * block_bytes - 0.85 * of_draws) <= block_bytes
    assert plain > drawn
    assert num_blocks("suffix", "published") == num_blocks("suffix", "draws")


def test_what_kv_takes_on_its_way_in_is_left_free(tmp_path: Path) -> None:
    loaded = load_model(make_llama(tmp_path))
    plain, beside = (
        plan_cache(loaded, replace(CROWD, buffer_bytes=num_bytes), "cuda", PretendedGpu())
        for num_bytes in (0, 300_000)
    )

    missing_bytes = (plain.num_blocks - beside.num_blocks) * plain.layout.block_bytes
    assert abs(missing_bytes - 0.85 * 300_000) <= plain.layout.block_bytes


def test_where_no_graph_is_within_its_budget_it_is_said(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    gpu = PretendedGpu(first_graph_bytes=12 * MAX_GRAPH_BYTES + 12)

    loaded, limits = load_model(make_llama(tmp_path)), PassLimits(max_requests=12, max_blocks=4)

    passes = measure(loaded, loaded.info.layout(4, "auto"), limits, gpu)

    assert passes.graph_sizes == () and passes.graph_bytes == 0
    assert "decode passes run without graphs" in caplog.text


def test_experts_that_are_not_tried_count_with_all_that_a_token_chooses(tmp_path: Path) -> None:
    loaded = load_model(make_mixtral(tmp_path))
    one, two = (estimated_bytes(loaded, PassLimits(max_tokens=n)) for n in (1000, 2000))

    config = json.loads((tmp_path / "config.json").read_text())
    of_an_expert = 2 * config["intermediate_size"] + config["hidden_size"]
    assert two - one >= 1000 * 4 * config["num_experts_per_tok"] * of_an_expert


def test_a_pass_that_does_not_fit_at_all_is_refused_with_the_remedy(tmp_path: Path) -> None:
    gpu = PretendedGpu(has_room_for_a_pass=False)

    with pytest.raises(InvalidConfig, match="lower scheduler"):
        plan_cache(load_model(make_llama(tmp_path)), CROWD, "cuda", gpu)


@pytest.mark.parametrize(
    ("max_tokens", "max_requests", "max_blocks", "max_model_len"),
    [(40, 12, 8, 32), (5, 9, 8, 29), (100, 3, 2, 100)],
)
def test_the_largest_passes_are_of_a_crowd_and_of_one_prompt_each_at_the_end_of_its_context(
    max_tokens: int, max_requests: int, max_blocks: int, max_model_len: int
) -> None:
    limits = PassLimits(max_tokens=max_tokens, max_requests=max_requests, max_blocks=max_blocks)
    longest = min(4 * max_blocks, max_model_len)

    crowd, alone = largest_passes(limits, 4, max_model_len)

    assert len(crowd) == min(max_tokens, max_requests)
    assert sum(len(chunk.tokens) for chunk in crowd) == min(max_tokens, max_requests * longest)
    assert [len(chunk.tokens) for chunk in alone] == [min(max_tokens, longest)]
    assert all(chunk.start + len(chunk.tokens) == longest for chunk in crowd + alone)
    for chunks in (crowd, alone):
        written = [block for chunk in chunks for block in chunk.blocks[chunk.start // 4 :]]
        assert written == list(range(1, len(written) + 1))


@pytest.mark.parametrize(
    ("max_tokens", "max_drafted", "num_runs", "run"),
    [(400, 96, 12, 9), (40, 96, 4, 9), (400, 360, 12, 16), (400, 4, 4, 2)],
)
def test_passes_of_drafts_alone_are_tried_as_well_for_gpus_attend_them_in_another_way(
    max_tokens: int, max_drafted: int, num_runs: int, run: int
) -> None:
    limits = PassLimits(
        max_tokens=max_tokens, max_requests=12, max_blocks=8, max_drafted=max_drafted
    )

    _, _, drafts = largest_passes(limits, 4, 32)

    assert [(len(each.tokens), each.num_outputs) for each in drafts] == [(run, run)] * num_runs
    assert {each.start + run for each in drafts} == {32}
    written = [block for chunk in drafts for block in chunk.blocks[chunk.start // 4 :]]
    assert written == list(range(1, len(written) + 1))
