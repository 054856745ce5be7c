"""What would keep a deployment from coming up, told before anything is started.

    the model     its architecture, its tensors by name and shape, its split among ranks
    the memory    weights and processes against what the machine, or the container, has left

Of files only descriptions and headers are read.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from baton.core.errors import InvalidConfig
from baton.engine.assemble import find_device
from baton.engine.checkpoint.load import check_model
from baton.platform.cluster.rank_check import check_ranks
from baton.platform.config.deployment import DeploymentConfig, override
from baton.platform.doctor.demand import demand_of
from baton.platform.doctor.node_checks import Demand, gib, left_of
from baton.platform.machine.memory import MemoryFacts
from baton.platform.models.hub import holds_weights

ROUNDED = ("int8", "int4")


def check_start(
    config: DeploymentConfig, folder: Path, memory: MemoryFacts
) -> tuple[Demand | None, str]:
    """What it wants, and a warning or nothing. Raises CheckpointError or InvalidConfig, with the
    remedy.

    Of a cluster that is joined neither devices nor memory are known here: there is no demand.
    """
    device = None if config.ray.address else find_device(config.device)
    if any(pool.parallel.size > 1 for pool in (config.prefill, config.decode)):
        check_ranks(config, folder)
    is_whole = config.wants_weights and holds_weights(folder)  # else nodes fetch the weights
    check_model(
        folder,
        load_format=config.load_format if is_whole else "dummy",
        dtype=config.dtype,
        quantize=config.quantize,
        streaming=config.streaming,
        device=device,
    )
    if device is None:
        return None, ""
    return check_room(config, folder, memory, is_on_gpu=device != "cpu")


def check_room(
    config: DeploymentConfig, folder: Path, memory: MemoryFacts, *, is_on_gpu: bool
) -> tuple[Demand, str]:
    """What it wants, and a warning if there is no room for full caches. Raises InvalidConfig if
    there is none even to come up, with what would fit."""

    def demand(changed: DeploymentConfig) -> Demand:
        return demand_of(changed, folder, is_on_gpu=is_on_gpu)

    wanted, left = demand(config), left_of(memory)
    if wanted.start_bytes > memory.left:
        *others, least = _smaller(config, is_on_gpu=is_on_gpu)
        remedy = "one replica of it does not fit, however quantized: take a smaller model"
        if demand(least[1]).start_bytes <= memory.left:
            fits = (one for one in others if demand(one[1]).start_bytes <= memory.left)
            how, smaller = next(fits, least)
            remedy = f"{how}: {gib(demand(smaller).start_bytes)}"
        raise InvalidConfig(
            f"too little memory: {_counted(config)} want {gib(wanted.weight_bytes)} for weights "
            f"and {gib(wanted.process_bytes)} for their processes, and there are {left}; {remedy}; "
            "or give the machine or the container more"
        )
    if wanted.full_bytes <= memory.left:
        return wanted, ""
    return wanted, (
        f"caches may grow to {gib(wanted.cache_bytes)} beside {gib(wanted.start_bytes)} for "
        f"weights and processes, and there are {left}: the kernel ends a replica before they "
        "are full; lower --cache-gib, or start fewer replicas"
    )


def _smaller(
    config: DeploymentConfig, *, is_on_gpu: bool
) -> Iterator[tuple[str, DeploymentConfig]]:
    """What may be tried, from the least loss to the greatest."""
    fewer = override(config, {"prefill.replicas": 0, "decode.replicas": 1})
    can_round = not is_on_gpu and config.quantize not in ROUNDED
    less_weight = {bits: {"quantize": bits} for bits in ROUNDED} if can_round else {}
    for bits, change in less_weight.items():
        yield f"quantize the weights (--quantize {bits})", override(config, change)
    yield "start fewer replicas (one, --prefill 0 --decode 1)", fewer
    for bits, change in less_weight.items():
        both = f"start one replica and quantize it (--prefill 0 --decode 1 --quantize {bits})"
        yield both, override(fewer, change)


def _counted(config: DeploymentConfig) -> str:
    counts = [f"{number} {role}" for role, number in config.wanted_replicas.items()]
    return f"{' and '.join(counts)} replicas"
