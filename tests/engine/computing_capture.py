"""CUDA's part in graphs: what was captured is computed again, into the same memory."""

from __future__ import annotations

from collections.abc import Callable

import torch

from baton.engine.batch.static_batch import PassLimits, StaticBatch
from baton.engine.models.skeleton.taps import AuxHiddenStates
from baton.engine.passes.captured_model import CapturedModel
from baton.engine.passes.cuda_graphs import DecodeGraphs
from baton.engine.passes.graph_capture import Outputs
from baton.engine.passes.mixed_graphs import MixedGraphs, mixed_batch
from baton.engine.passes.runner import ModelRunner


class Replay:
    def __init__(self, run: Callable[[], Outputs], outputs: Outputs) -> None:
        self._run, self._outputs = run, outputs

    def replay(self) -> None:
        for kept, computed in zip(self._outputs, self._run(), strict=True):
            kept.copy_(computed)


class ComputingCapture:
    def __init__(self) -> None:
        self.sizes: list[int] = []

    def prepare(self, run: Callable[[], Outputs]) -> None: ...

    def __call__(self, run: Callable[[], Outputs]) -> tuple[Replay, Outputs]:
        outputs = tuple(output.clone() for output in run())
        self.sizes.append(len(outputs[0]))
        return Replay(run, outputs), outputs

    def await_upload(self) -> None: ...

    def uploading(self) -> None: ...


def captured_model(
    runner: ModelRunner,
    spare_block: int,
    capture: ComputingCapture | None = None,
    taps: AuxHiddenStates | None = None,
) -> CapturedModel:
    capture = ComputingCapture() if capture is None else capture
    return CapturedModel(runner.model, runner.cache, spare_block, capture, taps)


@torch.inference_mode()
def graphs_of(
    runner: ModelRunner,
    limits: PassLimits,
    spare_block: int,
    capture: ComputingCapture | None = None,
    taps: AuxHiddenStates | None = None,
) -> DecodeGraphs:
    has_adapters = runner.model.adapters.exist
    batch = StaticBatch(limits, runner.cache.layout.block_size, has_adapters=has_adapters)
    return DecodeGraphs(captured_model(runner, spare_block, capture, taps), batch)


@torch.inference_mode()
def mixed_graphs_of(
    runner: ModelRunner,
    limits: PassLimits,
    spare_block: int,
    capture: ComputingCapture | None = None,
    taps: AuxHiddenStates | None = None,
) -> MixedGraphs:
    captured = captured_model(runner, spare_block, capture, taps)
    return MixedGraphs(captured, mixed_batch(captured, limits))
