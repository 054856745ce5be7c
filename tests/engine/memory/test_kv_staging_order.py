"""Whom a copy of KV waits for, out of a GPU and into it: see `OrderedCuda`."""

from __future__ import annotations

import threading

import pytest
import torch
from tests.engine.memory.ordered_cuda import OrderedCuda, OrderedStream, pretend
from torch import Tensor

from baton.core.kv_layout import KvLayout
from baton.engine.memory.kv_staging import KvStaging

LAYOUT = KvLayout(
    model_fingerprint=b"model",
    dtype="float32",
    num_layers=2,
    num_kv_heads=1,
    head_dim=8,
    block_size=4,
)


@pytest.fixture
def cuda(monkeypatch: pytest.MonkeyPatch) -> OrderedCuda:
    return pretend(monkeypatch)


@pytest.fixture
def staging(cuda: OrderedCuda) -> KvStaging:
    planes = [torch.zeros(3, LAYOUT.layer_block_bytes, dtype=torch.uint8) for _ in range(2)]
    return KvStaging(planes, LAYOUT)


def run_pass(cuda: OrderedCuda, staging: KvStaging, stream: OrderedStream, name: str) -> None:
    with cuda.stream(stream):
        mark = staging.marking(lambda layer: None)
        for layer in range(2):
            cuda.launch(f"{name}, layer {layer}")
            mark(layer)


def test_bytes_are_read_behind_their_layer_and_before_the_next(
    cuda: OrderedCuda, staging: KvStaging
) -> None:
    run_pass(cuda, staging, cuda.default, "pass")
    seen: list[set[str]] = []

    def gather(numbers: Tensor) -> Tensor:
        seen.append(cuda.predecessors())
        cuda.launch("gathering")
        return torch.zeros(len(numbers), 8, dtype=torch.uint8)

    staging.read((1,), range(1), gather)

    assert seen == [{"pass, layer 0"}]
    assert "gathering" in cuda.awaited()


@pytest.mark.parametrize("is_callers", [False, True])
def test_blocks_are_written_behind_all_passes_whatever_stream_the_caller_is_on(
    cuda: OrderedCuda, staging: KvStaging, is_callers: bool
) -> None:
    """A pass that was launched before may still write to blocks that came free since."""
    of_passes = cuda.default if is_callers else cuda.Stream(None)
    seen: list[set[str]] = []
    awaited: list[set[str]] = []

    prepared: list[set[str]] = []

    def prepare() -> Tensor:
        prepared.append(cuda.predecessors())
        return torch.zeros(8, dtype=torch.uint8)

    def scatter(staged: Tensor) -> None:
        seen.append(cuda.predecessors())
        cuda.launch("scattering")

    def write() -> None:
        with cuda.stream(cuda.default if is_callers else cuda.Stream(None)):
            staging.write(prepare, scatter)
        awaited.append(cuda.awaited())

    run_pass(cuda, staging, of_passes, "pass")
    writer = threading.Thread(target=write)
    writer.start()
    writer.join(30)

    assert prepared == [set()], "it is copied, or verified, while they run"
    assert seen == [{"pass, layer 0", "pass, layer 1"}]
    assert [found >= {"scattering"} for found in awaited] == [True], "what comes next may read it"
