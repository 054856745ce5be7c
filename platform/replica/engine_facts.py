"""Facts about an engine for status pages: model, dtype, kernels, passes."""

from __future__ import annotations

import torch

from baton.engine.engine import Engine
from baton.engine.passes.runner import ModelRunner, Runner
from baton.engine.ranks.lead import LeadRunner
from baton.engine.ranks.lockstep import LockstepRunner
from baton.kernels.cpu.library import order_of_sums
from baton.platform.machine.core_share import is_compiled
from baton.proto import replica_pb2 as pb


def engine_facts(model_name: str, engine: Engine) -> pb.EngineFacts:
    """Constant while the engine lives. Call it from the thread that has set torch's threads."""
    info, runner = engine.info, engine.runner
    device = runner.cache.device.type
    return pb.EngineFacts(
        model=model_name,
        architecture=info.architecture,
        dtype=info.dtype,
        quantize=info.quantize,
        kv_dtype=engine.pool.layout.dtype,
        device=device,
        kernels=_kernels(device, info.dtype),
        passes=_passes(runner),
        num_threads=torch.get_num_threads(),
        num_ranks=runner.num_ranks if isinstance(runner, LeadRunner | LockstepRunner) else 1,
    )


def _kernels(device: str, dtype: str) -> str:
    if device == "cuda":
        return "triton"
    if not is_compiled(dtype):
        return "torch"
    order = order_of_sums(is_bfloat16=dtype == "bfloat16")
    return f"compiled, {order}" if order else "compiled"


def _passes(runner: Runner) -> str:
    """How passes run: from a tape or graphs, else eagerly."""
    if isinstance(runner, LockstepRunner):
        return "model"
    if isinstance(runner, LeadRunner):
        return _passes(runner.own)
    if not isinstance(runner, ModelRunner):
        return "echo"
    if runner.taped is not None:
        return "tape"
    return "model" if runner.graphs is None else "graphs"
