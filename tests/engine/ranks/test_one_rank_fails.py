"""One of two tensor ranks alone cannot do what both try when they start: no other waits for it.

CUDA's part is played by `ComputingCapture`; the ranks are threads of this process, over Gloo.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.engine.computing_capture import ComputingCapture, Replay
from tests.engine.ranks.greedy_answers import CONFIG
from tests.engine.ranks.two_ranks import on_two_ranks
from tests.engine.test_cache_plan import PretendedGpu
from tests.tiny_checkpoints import make_llama

from baton.core.errors import InvalidConfig
from baton.engine.batch.static_batch import GraphSize, PassLimits, StaticBatch
from baton.engine.cache_plan import plan_cache
from baton.engine.checkpoint.load import load_model
from baton.engine.memory.kv_cache import KvCache
from baton.engine.mesh import attempt
from baton.engine.mesh.attempt import RanksApart, collective_attempt, gather_numbers
from baton.engine.mesh.ranks import MeshGroups
from baton.engine.passes import pass_memory
from baton.engine.passes.captured_model import CapturedModel
from baton.engine.passes.graph_capture import Outputs
from baton.engine.passes.graph_start import checked_graphs
from baton.engine.sampling.sampler import draw

LIMITS = PassLimits(max_tokens=16, max_requests=4, max_blocks=8)
BLOCK_SIZE, SPARE_BLOCK = 4, 40
NO_MEMORY = torch.OutOfMemoryError("CUDA out of memory.")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_llama(tmp_path_factory.mktemp("model"))


@pytest.fixture(autouse=True)
def limit(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only keeps a failing test from hanging."""
    monkeypatch.setattr(attempt, "WITHIN", timedelta(seconds=30))
    monkeypatch.setattr(attempt, "FAILED_WITHIN", timedelta(seconds=30))


class FailingCapture(ComputingCapture):
    """Fails at passes of so many requests or more."""

    def __init__(self, error: Exception, least: int = 0) -> None:
        super().__init__()
        self._error, self._least = error, least

    def __call__(self, run: Callable[[], Outputs]) -> tuple[Replay, Outputs]:
        graph, outputs = super().__call__(run)
        if len(outputs[0]) >= self._least:
            raise self._error
        return graph, outputs


class LaunchlessCapture(ComputingCapture):
    """Cannot even launch a pass."""

    def prepare(self, run: Callable[[], Outputs]) -> None:
        raise NO_MEMORY


def capturing(
    folder: Path, captures: tuple[ComputingCapture, ComputingCapture]
) -> Callable[[MeshGroups], tuple[GraphSize, ...] | str | None]:
    """Sizes of the graphs that a rank has, or why it has none."""

    def run(groups: MeshGroups) -> tuple[GraphSize, ...] | str | None:
        loaded = load_model(folder, dtype="float32", groups=groups)
        layout = loaded.own(loaded.info.layout(BLOCK_SIZE, "auto"))
        cache = KvCache(layout, SPARE_BLOCK + 1, dtype=loaded.info.dtype)
        batch, capture = StaticBatch(LIMITS, BLOCK_SIZE), captures[groups.everyone.rank]
        try:
            captured = CapturedModel(loaded.model, cache, SPARE_BLOCK, capture, ranks=groups.engine)
            graphs = checked_graphs(captured, batch)
        except InvalidConfig as error:
            return str(error)
        return None if graphs is None else graphs.sizes

    return run


@pytest.mark.parametrize("failing", [0, 1])
def test_a_graph_that_one_rank_has_no_memory_for_is_nobodys(folder: Path, failing: int) -> None:
    captures = (ComputingCapture(), FailingCapture(NO_MEMORY, least=4))

    found = on_two_ranks(capturing(folder, captures if failing else captures[::-1]))

    assert found == [(GraphSize(1), GraphSize(2))] * 2, "and these agree with the model on both"
    assert [capture.sizes for capture in captures] == [[4, 2, 1]] * 2


def test_where_one_rank_cannot_capture_at_all_none_has_graphs(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    captures = (ComputingCapture(), FailingCapture(RuntimeError("not permitted")))

    assert on_two_ranks(capturing(folder, captures)) == [None, None]
    assert caplog.text.count("rank 1: not permitted") == 2
    assert [capture.sizes for capture in captures] == [[4]] * 2, "and they stop there"


def test_a_pass_that_one_rank_cannot_launch_ends_the_start_of_all(folder: Path) -> None:
    captures = (ComputingCapture(), LaunchlessCapture())

    reasons = on_two_ranks(capturing(folder, captures))

    for reason in reasons:
        assert isinstance(reason, str) and "rank 1: CUDA out of memory." in reason
        assert "scheduler.max_running" in reason


def test_a_pass_that_one_rank_has_no_memory_for_is_refused_by_all(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    failing = threading.local()

    def drawing(*given: Any) -> object:
        if failing.now:
            raise NO_MEMORY
        return draw(*given)

    monkeypatch.setattr(pass_memory, "draw", drawing)

    def run(groups: MeshGroups) -> str:
        failing.now = groups.everyone.rank == 1
        loaded = load_model(folder, dtype="float32", groups=groups)
        with pytest.raises(InvalidConfig) as found:
            plan_cache(loaded, CONFIG, "cuda", PretendedGpu())
        return str(found.value)

    for reason in on_two_ranks(run):
        assert "rank 1: CUDA out of memory." in reason and "lower scheduler" in reason


def test_a_rank_that_says_nothing_is_not_waited_for_without_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(attempt, "WITHIN", timedelta(milliseconds=200))
    monkeypatch.setattr(attempt, "FAILED_WITHIN", timedelta(milliseconds=200))
    has_waited = threading.Event()

    def run(groups: MeshGroups) -> list[str]:
        if groups.everyone.rank == 1:
            assert has_waited.wait(30)
            return []
        reasons = []
        for error in (None, NO_MEMORY):
            with pytest.raises(RanksApart) as found, collective_attempt(groups.engine):
                if error is not None:
                    raise error
            reasons.append(str(found.value))
        with pytest.raises(RanksApart):
            gather_numbers(groups.engine, 1)
        has_waited.set()
        return reasons

    [(silent, own), _] = on_two_ranks(run)

    assert "another rank is gone, or hangs" in silent
    assert own.startswith("CUDA out of memory.; no other rank knows")
