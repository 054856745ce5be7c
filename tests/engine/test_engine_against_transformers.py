"""Small real models through the engine give what transformers gives, however they are scheduled."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from tests.tiny_checkpoints import VOCAB_SIZE, make_llama, make_qwen3, transformers_greedy

from baton.core.kv_pool import Holder, HolderKind
from baton.core.sampling import SamplingParams
from baton.engine.assemble import assemble_engine
from baton.engine.config import CacheConfig, EngineConfig, SchedulerConfig
from baton.engine.engine import Engine
from baton.engine.request.request import Request
from baton.engine.schedule.drafted_chunks import ScheduledChunk
from baton.engine.step_hooks import StepHooks

BLOCK_SIZE = 4
MAX_TOKENS = 24


class Model:
    """A tiny checkpoint, 16 prompts of mixed lengths, and their right answers."""

    def __init__(self, folder: Path, make: Callable[[Path], Path]) -> None:
        self.folder = make(folder)
        rng = random.Random(0)
        common = [rng.randrange(2, VOCAB_SIZE) for _ in range(19)]
        self.prompts = [
            common[: 7 * (index % 4)]
            + [rng.randrange(2, VOCAB_SIZE) for _ in range(1 + 5 * index % 23)]
            for index in range(16)
        ]
        self.expected = transformers_greedy(self.folder, self.prompts, MAX_TOKENS)
        assert len({len(output) for output in self.expected}) > 1  # some end by themselves


@pytest.fixture(scope="module", params=[make_llama, make_qwen3], ids=["llama", "qwen3"])
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Model:
    return Model(tmp_path_factory.mktemp("model"), request.param)


def make_engine(
    model: Model, *, num_blocks: int = 512, scheduler: SchedulerConfig | None = None
) -> Engine:
    config = EngineConfig(
        cache=CacheConfig(block_size=BLOCK_SIZE, num_blocks=num_blocks),
        scheduler=scheduler or SchedulerConfig(),
    )
    return assemble_engine(model.folder, config, dtype="float32", device="cpu")


def make_request(
    model: Model, index: int, *, suffix: str = "", max_new_tokens: int | None = None
) -> Request:
    return Request(
        f"{index}{suffix}",
        model.prompts[index],
        sampling=SamplingParams(temperature=0.0, max_tokens=MAX_TOKENS),
        max_new_tokens=max_new_tokens,
    )


def answer(engine: Engine, requests: list[Request]) -> list[list[int]]:
    """The outputs of `requests`, which arrive together."""
    for request in requests:
        engine.add(request)
    while engine.has_work:
        assert not engine.step().is_stalled
    assert engine.pool.num_in_use == 0
    return [request.output for request in requests]


def test_one_request_after_the_other(model: Model) -> None:
    engine = make_engine(model)

    for index, expected in enumerate(model.expected):
        assert answer(engine, [make_request(model, index)]) == [expected]


def test_sixteen_requests_at_once(model: Model) -> None:
    requests = [make_request(model, index) for index in range(16)]

    assert answer(make_engine(model), requests) == model.expected


def test_prompts_in_chunks_of_seven(model: Model) -> None:
    engine = make_engine(model, scheduler=SchedulerConfig(max_batch_tokens=7))
    requests = [make_request(model, index) for index in range(16)]

    assert answer(engine, requests) == model.expected


def test_prompts_found_in_the_prefix_cache(model: Model) -> None:
    engine = make_engine(model)
    answer(engine, [make_request(model, index) for index in range(16)])
    again = [make_request(model, index, suffix=" again") for index in range(16)]

    assert answer(engine, again) == model.expected
    assert [r.num_cached for r in again] == [(len(r.prompt) - 1) // 4 * 4 for r in again]


def test_requests_preempted_in_a_tiny_pool(model: Model) -> None:
    engine = make_engine(model, num_blocks=20)
    requests = [make_request(model, index) for index in range(16)]

    assert answer(engine, requests) == model.expected
    assert engine.stats.num_preempted > 0


def test_requests_prefilled_on_another_engine(model: Model) -> None:
    source = make_engine(model, scheduler=SchedulerConfig(prefill_chunk=7))
    target = make_engine(model)
    moved = [make_request(model, index) for index in range(16)]

    for index, request in enumerate(moved):
        prefilled, lease = prefill(source, make_request(model, index, max_new_tokens=1))
        request.append(prefilled.output[0])
        if target.finish_reason(request) is None:
            target.adopt(request, copy_blocks(source, lease, target, request.prompt))
            target.step()  # the earlier ones run on while later ones arrive
        source.pool.release(lease)

    while target.has_work:
        target.step()
    assert [request.output for request in moved] == model.expected
    assert sum(request.num_run for request in moved) == sum(r.num_sampled - 1 for r in moved)
    assert source.pool.num_in_use == target.pool.num_in_use == 0


def prefill(engine: Engine, request: Request) -> tuple[Request, Holder]:
    """Compute a prompt; its blocks stay behind in a lease."""
    lease = Holder(HolderKind.LEASE, "out")

    def share(layer: int, chunks: Sequence[ScheduledChunk]) -> None:
        for chunk in chunks:
            if chunk.num_tokens == chunk.request.num_pending:
                num_blocks = len(engine.pool.table(chunk.request.holder))
                engine.pool.share(chunk.request.holder, lease, num_blocks)

    engine.add(request)
    while engine.has_work:
        engine.step(StepHooks(on_layer=share))
    return request, lease


def copy_blocks(source: Engine, lease: Holder, target: Engine, prompt: list[int]) -> Holder:
    """A lease of `target` with the KV of `prompt`, of which it may have a part already."""
    copy = Holder(HolderKind.LEASE, "in")
    num_cached = target.pool.reserve(copy, prompt, b"")
    assert num_cached is not None
    for block in range(num_cached // BLOCK_SIZE, len(target.pool.table(copy))):
        for layer in range(source.info.num_layers):
            target.pool.write(copy, block, layer, source.pool.view(lease, block, layer))
    return copy
