"""The deployment as one frozen tree. A process is handed the branch it needs, never the root.

    model, served_model_name, dtype, load_format, device
    prefill, decode      one pool each: replicas, resources, the engine's cache and scheduler
    transfer             how KV travels between them
    gateway              the ports, limits and keys clients meet
    ray                  the cluster to join

`baton serve -f baton.yaml` reads it, `baton serve` options override it, and the Helm chart's
values embed it under one key.
"""

from __future__ import annotations

import dataclasses
import math
import typing
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec

from baton.core.errors import InvalidConfig
from baton.engine.config import CacheConfig, EngineConfig, SchedulerConfig
from baton.platform.config_node import ConfigNode, Count, Fraction, Seconds
from baton.platform.gateway.config import GatewayConfig

DEMO_MODEL = "demo"
"""The small model that comes with Baton."""

NumReplicas = Annotated[int, msgspec.Meta(ge=0)]


class ResourcesConfig(ConfigNode, frozen=True, kw_only=True):
    """What one replica asks of Ray."""

    num_cpus: Annotated[float, msgspec.Meta(gt=0)] = 1.0
    """CPUs that Ray counts for it; threads are another matter."""
    num_gpus: Annotated[float, msgspec.Meta(ge=0)] = 0.0
    """GPUs, or a share of one."""
    num_threads: Annotated[int, msgspec.Meta(ge=0)] = 0
    """Torch threads on a CPU. 0: its share of this machine's cores."""


class PoolConfig(ConfigNode, frozen=True, kw_only=True):
    """The replicas of one role, all alike."""

    replicas: NumReplicas = 1
    """Engines of this role. Without prefill replicas prompts are computed where they decode."""
    resources: ResourcesConfig = ResourcesConfig()
    cache: CacheConfig = CacheConfig()
    scheduler: SchedulerConfig = SchedulerConfig()

    @property
    def engine(self) -> EngineConfig:
        return EngineConfig(cache=self.cache, scheduler=self.scheduler)


class PrefillConfig(PoolConfig, frozen=True, kw_only=True):
    """Replicas that compute prompts."""

    max_queued_tokens: Count = 32_768
    """Prompts that would queue more tokens than these on one replica are refused at once."""


class DecodeConfig(PoolConfig, frozen=True, kw_only=True):
    """Replicas that generate tokens."""

    max_open: Count = 128
    """Requests a replica takes at once; more wait at the gateways."""

    def __post_init__(self) -> None:
        if self.replicas == 0:
            raise ValueError("decode.replicas must be at least 1: every request ends on one")


class GatewayPoolConfig(GatewayConfig, frozen=True, kw_only=True):
    """What clients meet: the ports, and the limits and keys behind them."""

    replicas: Count = 1
    """Gateway processes; those of one machine share the ports."""
    no_replica_grace_s: Seconds = 60.0
    """How long a request waits while no decode replica is connected, before it gets a 503."""


class TransferConfig(ConfigNode, frozen=True, kw_only=True):
    """How KV travels from prefill to decode replicas."""

    transport: Literal["grpc", "memory"] = "grpc"
    """`memory` works only where both replicas live in one process, as in `baton verify`."""
    max_leased_fraction: Fraction = 0.5
    """Share of a decode replica's blocks that handoffs under way may hold."""
    prefill_timeout_s: Seconds = 60.0
    """After this long the decode replica computes the prompt itself."""


class HealthConfig(ConfigNode, frozen=True, kw_only=True):
    """When a replica counts as broken, and how one leaves."""

    check_period_s: Seconds = 1.0
    """How often every replica is asked whether it is well."""
    stuck_after_s: Seconds = 120.0
    """A step that takes longer than this is taken for a hang, and the replica is replaced."""
    drain_s: Seconds = 30.0
    """How long a replica that must go may finish what it has."""


class RayConfig(ConfigNode, frozen=True, kw_only=True):
    """The cluster the replicas run on."""

    address: str = ""
    """Of the cluster to join. Empty: start one on this machine, and stop it at the end.

    In a joined cluster the gateway listens on the node it is placed on: `gateway.host` decides who
    reaches it there.
    """
    dashboard: bool = False
    """Start Ray's dashboard with a local cluster (port 8265)."""


class DeploymentConfig(ConfigNode, frozen=True, kw_only=True):
    """One model, served by two pools of replicas behind a gateway."""

    model: str = DEMO_MODEL
    """A folder in Hugging Face format, a Hugging Face id (`org/name` or `org/name@revision`), or
    `demo`."""
    served_model_name: str = ""
    """What clients call it. Empty: the last part of `model`."""
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = "auto"
    """Of weights and KV. `auto` takes what the checkpoint says."""
    load_format: Literal["auto", "dummy"] = "auto"
    """`dummy` makes up random weights from `config.json` alone, for benchmarks."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """`auto` takes a GPU where there is one."""
    prefill: PrefillConfig = PrefillConfig()
    decode: DecodeConfig = DecodeConfig()
    gateway: GatewayPoolConfig = GatewayPoolConfig()
    transfer: TransferConfig = TransferConfig()
    health: HealthConfig = HealthConfig()
    ray: RayConfig = RayConfig()

    def __post_init__(self) -> None:
        if self.prefill.cache.block_size != self.decode.cache.block_size:
            raise ValueError("prefill and decode must use the same cache.block_size")
        if self.gateway.port == self.gateway.grpc_port != 0:
            raise ValueError("gateway.port and gateway.grpc_port must differ")

    @property
    def wants_weights(self) -> bool:
        """Whether this is about what the model says, not only about how fast."""
        return self.load_format != "dummy"

    @property
    def model_name(self) -> str:
        name = Path(self.model).name or self.model
        if not self.model.startswith((".", "/", "~")):
            name = name.partition("@")[0] or name  # the revision of a Hugging Face id
        return self.served_model_name or name


def read_config(path: Path) -> DeploymentConfig:
    """Raises InvalidConfig with the path to the mistake."""
    try:
        raw = msgspec.yaml.decode(path.read_bytes())
    except OSError as error:
        raise InvalidConfig(f"cannot read {path}: {error.strerror}") from error
    except (ValueError, msgspec.DecodeError) as error:  # ValueError: month 13 of a date
        reason = " ".join(str(error).replace('in "<byte string>",', "at").split())
        raise InvalidConfig(f"{path}: not YAML: {reason}") from error
    try:
        return parse_config({} if raw is None else raw)
    except InvalidConfig as error:
        raise InvalidConfig(
            f"{path}: {error}; `baton config schema` says what it may hold"
        ) from None


def configure(file: Path | None, changes: dict[str, Any]) -> DeploymentConfig:
    """The file, if there is one, and what was said besides. Raises InvalidConfig."""
    return override(DeploymentConfig() if file is None else read_config(file), changes)


def parse_config(raw: Any) -> DeploymentConfig:
    try:
        config = msgspec.convert(raw, DeploymentConfig)
    except msgspec.ValidationError as error:
        raise InvalidConfig(str(error)) from None
    _check_keys_and_numbers(raw, DeploymentConfig, "$")
    return config


def override(config: DeploymentConfig, changes: dict[str, Any]) -> DeploymentConfig:
    """Apply `{"decode.replicas": 2}`-like changes, validated like the file itself."""
    raw = msgspec.to_builtins(config)
    for path, value in changes.items():
        *parents, key = path.split(".")
        node = raw
        for parent in parents:
            node = node.setdefault(parent, {})
            if not isinstance(node, dict):
                raise InvalidConfig(f"`{parent}` has no keys of its own - in `{path}`")
        node[key] = value
    return parse_config(raw)


def _check_keys_and_numbers(raw: Any, node: type, path: str) -> None:
    """Refuse what msgspec lets pass.

    It refuses unknown keys of structs, but the engine's branches are dataclasses; and it accepts
    infinity and NaN, which JSON, on the way to another process, cannot hold.
    """
    hints = typing.get_type_hints(node)
    for key, value in raw.items():
        if key not in hints:
            raise InvalidConfig(f"Object contains unknown field `{key}` - at `{path}`")
        if isinstance(value, float) and not math.isfinite(value):
            raise InvalidConfig(f"Expected a finite number, got {value} - at `{path}.{key}`")
        child = hints[key]
        if isinstance(value, dict) and (
            dataclasses.is_dataclass(child) or issubclass(child, msgspec.Struct)
        ):
            _check_keys_and_numbers(value, child, f"{path}.{key}")
