"""Checks before the start whether a model can be split over the configured ranks."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from baton.core.errors import InvalidConfig
from baton.engine.checkpoint.load import read_config
from baton.engine.checkpoint.quantized.methods import parse_layout
from baton.engine.mesh.mesh import Axis, Mesh
from baton.engine.models.config.description import read_json
from baton.engine.models.config.model_config import ModelConfig
from baton.engine.sharding.cutting import check_context, share_of
from baton.engine.sharding.held_experts import check_experts
from baton.kv_transfer.transports import AUTO, TRANSPORTS
from baton.platform.config.deployment import DeploymentConfig

MOST_NAMED = 16
"""The most ranks tried when suggesting other sizes."""


def check_ranks(config: DeploymentConfig, folder: Path) -> None:
    """Raises InvalidConfig with the key, the reason and valid sizes; CheckpointError."""
    _check_context(config)
    _check_gpus(config)
    _check_transport(config)
    _check_rounding(config, folder)
    model = read_config(folder)
    for pool, key in ((config.prefill, "prefill"), (config.decode, "decode")):
        if pool.replicas:
            _check_pool(model, pool.parallel.mesh, f"{key}.parallel")


def _check_pool(model: ModelConfig, mesh: Mesh, key: str) -> None:
    """Raises InvalidConfig with the axis along which it cannot be split."""
    try:
        mesh.check_data()
    except InvalidConfig as error:
        raise InvalidConfig(f"{key}.data: {error}") from None
    try:
        check_experts(model, mesh)
    except InvalidConfig as error:
        raise InvalidConfig(f"{key}.expert: {error}") from None
    for axis, tried in ((Axis.TENSOR, replace(mesh, pipeline=1)), (Axis.PIPELINE, mesh)):
        if reason := why_not(model, tried):
            sizes = list(_sizes(model, tried, axis))
            raise InvalidConfig(f"{key}.{axis.value}: {reason}; this model takes {_listed(sizes)}")


def _sizes(model: ModelConfig, mesh: Mesh, axis: Axis) -> Iterator[int]:
    """Valid sizes of an axis, with the others unchanged; expert ranks follow tensor ranks."""
    of_tensor = mesh.expert // mesh.tensor if axis is Axis.TENSOR else 0
    for size in range(1, MOST_NAMED + 1):
        with suppress(InvalidConfig):
            expert = of_tensor * size or mesh.expert
            share_of(model, replace(mesh, **{axis.value: size, "expert": expert}))
            yield size


def _check_context(config: DeploymentConfig) -> None:
    """Raises InvalidConfig where context parallelism has no prompts to share, or is not
    supported."""
    prefill, decode = config.prefill, config.decode
    for pool, key in ((prefill, "prefill"), (decode, "decode")):
        try:
            check_context(pool.parallel.mesh)
        except InvalidConfig as error:
            raise InvalidConfig(f"{key}.parallel.context: {error}") from None
        if pool.replicas and pool.parallel.context > 1 and pool.cache.kv_dtype == "int4":
            raise InvalidConfig(
                f"{key}.cache.kv_dtype: int4 does not work with parallel.context "
                f"{pool.parallel.context}, since ranks do not exchange partly filled blocks; set "
                "it to int8"
            )
    if prefill.replicas and decode.parallel.context > 1:
        raise InvalidConfig(
            "decode.parallel.context: it speeds up prompts only, which the prefill replicas "
            "compute; set prefill.parallel.context instead"
        )
    if not prefill.replicas and prefill.parallel.context > 1:
        raise InvalidConfig(
            "prefill.parallel.context: there are no prefill replicas; set decode.parallel.context "
            "instead"
        )


def _check_gpus(config: DeploymentConfig) -> None:
    """Raises InvalidConfig if two ranks of a replica would share a GPU."""
    for pool, key in ((config.prefill, "prefill"), (config.decode, "decode")):
        share = pool.resources.num_gpus
        if pool.replicas and pool.parallel.size > 1 and 0 < share <= 0.5:
            raise InvalidConfig(
                f"{key}.resources.num_gpus: at {share:g} of a GPU, several of the "
                f"{pool.parallel.size} ranks would share one, which NCCL does not support; set it "
                "to 1"
            )


def _check_transport(config: DeploymentConfig) -> None:
    """Raises InvalidConfig if no transport could hand over KV of several prefill ranks."""
    if not config.prefill.replicas or config.prefill.parallel.mesh.engine.has_whole_models:
        return
    transfer = config.transfer
    key = "transport"
    names: tuple[str, ...] = (transfer.transport,)
    if transfer.transport == AUTO:
        key, names = "require", transfer.require
    carries = [
        name for name, kind in TRANSPORTS.items() if kind.reads_shares or not kind.reads_arena
    ]
    if names and not set(names) & set(carries):
        raise InvalidConfig(
            f"transfer.{key}: {', '.join(names)} cannot transfer KV that is split over "
            f"{config.prefill.parallel.size} prefill ranks; choose from {', '.join(carries)}"
        )


def _check_rounding(config: DeploymentConfig, folder: Path) -> None:
    """Raises InvalidConfig for a quantised checkpoint of which only one pool splits the matrices:
    that pool would widen them, compute different KV, and could never hand it over."""
    layouts = [pool.parallel for pool in (config.prefill, config.decode) if pool.replicas]
    are_cut = {parallel.tensor > 1 for parallel in layouts}
    is_mixed = len(are_cut) > 1
    experts_differ = are_cut == {True} and len({each.expert > 1 for each in layouts}) > 1
    if config.quantize != "none" or not (is_mixed or experts_differ):
        return
    if not parse_layout(read_json(folder / "config.json")):
        return
    if experts_differ:
        raise InvalidConfig(
            "quantize: this checkpoint is quantised, and its experts stay quantised only with "
            "parallel.expert above 1; set quantize to wide, or parallel.expert above 1 for both "
            "pools"
        )
    raise InvalidConfig(
        "quantize: this checkpoint is quantised, and replicas of several tensor ranks widen it "
        "when they load it; set quantize to wide, or parallel.tensor above 1 for both pools"
    )


def why_not(model: ModelConfig, mesh: Mesh) -> str:
    """Why the model cannot be split so; empty if it can."""
    try:
        share_of(model, mesh)
    except InvalidConfig as error:
        return str(error)
    return ""


def _listed(sizes: list[int]) -> str:
    return ", ".join(map(str, sizes[:-1])) + f" or {sizes[-1]}" if sizes[1:] else str(sizes[0])
