"""Whether a model can be spread over the ranks that a deployment asks for, before they start."""

from __future__ import annotations

from pathlib import Path

from baton.core.errors import InvalidConfig
from baton.engine.checkpoint.config import ModelConfig, read_json
from baton.engine.checkpoint.load import read_config
from baton.engine.checkpoint.quantized_checkpoint import parse_layout
from baton.engine.parallel.cutting import share_of
from baton.engine.parallel.mesh import Mesh
from baton.kv_transfer.transport.registry import AUTO, TRANSPORTS
from baton.platform.config import DeploymentConfig

MOST_NAMED = 16
"""Ranks that are tried when others must be named."""


def check_ranks(config: DeploymentConfig, folder: Path) -> None:
    """Raises InvalidConfig with the key, the reason and what would do; CheckpointError."""
    _check_transport(config)
    _check_rounding(config, folder)
    model = read_config(folder)
    for pool, key in ((config.prefill, "prefill"), (config.decode, "decode")):
        reason = _why_not(model, pool.parallel.mesh)
        if pool.replicas and reason:
            sizes = [
                size for size in range(1, MOST_NAMED + 1) if not _why_not(model, Mesh(tensor=size))
            ]
            raise InvalidConfig(
                f"{key}.parallel.tensor: {reason}; this model takes {_listed(sizes)}"
            )


def _check_transport(config: DeploymentConfig) -> None:
    """Raises InvalidConfig if what several ranks prefill could never be handed over."""
    if not config.prefill.replicas or config.prefill.parallel.size == 1:
        return
    transfer = config.transfer
    key = "transport"
    names: tuple[str, ...] = (transfer.transport,)
    if transfer.transport == AUTO:
        key, names = "require", transfer.require
    carries = [name for name, kind in TRANSPORTS.items() if not kind.reads_arena]
    if names and not set(names) & set(carries):
        raise InvalidConfig(
            f"transfer.{key}: {', '.join(names)} would read KV where it lies, and that of "
            f"{config.prefill.parallel.size} prefill ranks is in pieces; {', '.join(carries)} "
            "can carry it"
        )


def _check_rounding(config: DeploymentConfig, folder: Path) -> None:
    """Raises InvalidConfig for a checkpoint that comes quantised, and stays so on one rank alone:
    pools of which only one has several would compute different KV, and never hand it over."""
    sizes = {pool.parallel.size for pool in (config.prefill, config.decode) if pool.replicas}
    is_mixed = 1 in sizes and len(sizes) > 1
    if is_mixed and config.quantize == "none" and parse_layout(read_json(folder / "config.json")):
        raise InvalidConfig(
            "quantize: this checkpoint comes quantised, which several ranks widen when they load "
            "it, and one rank does not; set it to wide, or give both pools several ranks"
        )


def _why_not(model: ModelConfig, mesh: Mesh) -> str:
    """Empty if it can be."""
    try:
        share_of(model, mesh)
    except InvalidConfig as error:
        return str(error)
    return ""


def _listed(sizes: list[int]) -> str:
    return ", ".join(map(str, sizes[:-1])) + f" or {sizes[-1]}" if sizes[1:] else str(sizes[0])
