"""Checks before the start whether a deployment can come up.

    the model     its architecture, its tensors by name and shape, its split among ranks
    the memory    weights and processes against what the machine, or the container, has left

Only configurations and file headers are read.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from baton.core.errors import InvalidConfig
from baton.core.replicas import counts_by_role
from baton.engine.assemble import find_device
from baton.engine.checkpoint.load import check_model
from baton.platform.config.deployment import DeploymentConfig, override
from baton.platform.doctor.demand import demand_of
from baton.platform.doctor.node_checks import Demand, gib, left_of
from baton.platform.machine.memory import MemoryFacts
from baton.platform.models.adapter_folders import folders_here
from baton.platform.models.hub import holds_weights

ROUNDED = ("int8", "int4")


def check_start(
    config: DeploymentConfig, folder: Path, memory: MemoryFacts
) -> tuple[Demand | None, str]:
    """The demand, and a warning, if any. Raises CheckpointError or InvalidConfig, with the remedy.
    For a joined cluster devices and memory are unknown here, so there is no demand.
    """
    device = None if config.ray.address else find_device(config.device)
    if any(pool.parallel.size > 1 for pool in (config.prefill, config.decode)):
        from baton.platform.cluster.ranks.rank_check import (
            check_ranks,  # since it imports all transports
        )

        check_ranks(config, folder)
    is_whole = config.wants_weights and holds_weights(folder)  # otherwise nodes fetch the weights
    check_model(
        folder,
        load_format=config.load_format if is_whole else "dummy",
        dtype=config.dtype,
        quantize=config.quantize,
        deterministic=config.deterministic,
        streaming=config.streaming,
        adapters=folders_here(config),  # others are fetched where replicas are placed
        device=device,
    )
    if device is None:
        return None, ""
    return check_room(config, folder, memory, is_on_gpu=device != "cpu")


def check_room(
    config: DeploymentConfig, folder: Path, memory: MemoryFacts, *, is_on_gpu: bool
) -> tuple[Demand, str]:
    """The demand, and a warning if memory is short now. Raises InvalidConfig, with a smaller
    setting, if it could not start even if others freed their memory."""

    def demand(changed: DeploymentConfig) -> Demand:
        return demand_of(changed, folder, is_on_gpu=is_on_gpu)

    wanted, left = demand(config), left_of(memory)
    if not memory.whole:
        return wanted, ""
    if wanted.least_bytes > memory.most:
        is_rounded = wanted.least_bytes < wanted.start_bytes
        *others, least = _smaller(config, can_round=not is_on_gpu and not is_rounded)
        remedy = "not even one replica with quantized weights fits: use a smaller model"
        if demand(least[1]).least_bytes <= memory.most:
            fits = (one for one in others if demand(one[1]).least_bytes <= memory.most)
            how, smaller = next(fits, least)
            remedy = f"{how}: {gib(demand(smaller).least_bytes)}"
        raise InvalidConfig(
            f"too little memory: the weights of {counts_by_role(config.wanted_replicas)} need "
            f"{gib(wanted.least_weight_bytes)} and the processes {gib(wanted.process_bytes)}, and "
            f"there are {left}; {remedy}; or give the machine or the container more memory"
        )
    if wanted.full_bytes <= memory.left:
        return wanted, ""
    if wanted.start_bytes > memory.left:
        return wanted, (
            f"weights and processes may want {gib(wanted.start_bytes)}, and there are {left}: "
            "unless others give some back the kernel ends a replica; start fewer, or quantize the "
            "weights"
        )
    return wanted, (
        f"caches may grow to {gib(wanted.cache_bytes)} beside {gib(wanted.start_bytes)} for "
        f"weights and processes, and there are {left}: the kernel ends a replica before they "
        "are full; lower --cache-gib, or start fewer replicas"
    )


def _smaller(
    config: DeploymentConfig, *, can_round: bool
) -> Iterator[tuple[str, DeploymentConfig]]:
    """Smaller settings to suggest, the least loss first."""
    fewer = override(config, {"prefill.replicas": 0, "decode.replicas": 1})
    less_weight = {bits: {"quantize": bits} for bits in ROUNDED}
    if not can_round or config.quantize in ROUNDED:
        less_weight = {}
    for bits, change in less_weight.items():
        yield f"quantize the weights (--quantize {bits})", override(config, change)
    yield "start fewer replicas (one, --prefill 0 --decode 1)", fewer
    for bits, change in less_weight.items():
        both = f"start one replica and quantize it (--prefill 0 --decode 1 --quantize {bits})"
        yield both, override(fewer, change)
