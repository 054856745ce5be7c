"""The deployment as one frozen tree. A process is handed the branch it needs, never the root.

    model, served_model_name, dtype, quantize, deterministic, load_format, device
    attention_window, attention_sinks
    prefill, decode      one pool each: replicas, resources, the engine's cache and scheduler
    transfer             how KV travels between them
    tiers                where KV is kept that leaves a device: host memory, disk, a shared store
    planner              numbers of replicas that follow the load; off
    gateway              the ports, limits and keys clients meet
    registry             how many registries of replicas there are
    health               when a replica counts as broken, and how one leaves
    ray                  the cluster to join
    security             how its processes know each other, and whether others can listen
    metrics, tracing     what each process tells about itself, and of requests
    chaos                faults on purpose; off

`baton serve -f baton.yaml` reads it, `baton serve` options override it, and the Helm chart's
values embed it under one key.
"""

from __future__ import annotations

import typing
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec

from baton.core.config_node import ConfigNode, Count, NonNegative, Seconds
from baton.core.errors import ITEM, InvalidConfig
from baton.core.replicas import Role
from baton.core.wire_security import PRIVATE_TRANSPORTS
from baton.engine.config import EngineConfig
from baton.gateway.access.config import GatewayConfig
from baton.kernels.paging.window import Streaming
from baton.kv_transfer.config import ExchangeConfig
from baton.kv_transfer.tiers.config import TiersConfig
from baton.platform.config.mistakes import mistakes_in
from baton.platform.config.model_url import scheme_of, why_no_model_url
from baton.platform.config.pools import DecodeConfig, PlacementConfig, PoolConfig, PrefillConfig
from baton.platform.config.repeated_keys import repeated_keys
from baton.platform.faults.config import ChaosConfig
from baton.platform.observe.config import MetricsConfig, TracingConfig
from baton.platform.observe.logs import LogFormat, LogLevel
from baton.platform.planner.config import PATIENCE, PlannerConfig
from baton.platform.security.config import SecurityConfig
from baton.router.config import PullConfig

DEMO_MODEL = "demo"
"""The small model that comes with Baton."""

TransportName = Literal["auto", "memory", "shm", "grpc", "tcp", "gloo", "nccl", "nixl"]


class GatewayPoolConfig(GatewayConfig, frozen=True, kw_only=True):
    """What clients meet: the ports, and the limits and keys behind them."""

    replicas: Count = 1
    """Gateway processes; those of one machine share the ports."""
    placement: PlacementConfig = PlacementConfig()
    no_replica_grace_s: Seconds = 60.0
    """How long a request waits while no decode replica takes requests, before it gets a 503."""


class TransferConfig(ExchangeConfig, frozen=True, kw_only=True):
    """How KV travels from prefill to decode replicas."""

    transport: TransportName = "auto"
    """`auto` measures and takes the fastest way to each peer; with TLS, none that does not encrypt.
    `memory` works only where both replicas live in one process, as in `baton verify`; `shm` on one
    machine."""
    require: tuple[str, ...] = ()
    """What `auto` may choose from. A peer that none of these leads to is not used: what it would
    have computed is computed where it is needed. Empty: anything."""
    allow_plain: bool = False
    """KV may travel unencrypted, by tcp, gloo, nccl or nixl, although `security` asks for TLS."""
    pull: PullConfig = PullConfig()

    def __post_init__(self) -> None:
        ways = typing.get_args(TransportName)[1:]  # `auto` chooses, and is none itself
        for name in self.require:
            if name not in ways:
                raise ValueError(
                    f"transfer.require: {name!r} is no way to move KV; there are {', '.join(ways)}"
                )
        if self.require and self.transport != "auto" and self.transport not in self.require:
            raise ValueError(
                f"transfer.transport {self.transport!r} is not among transfer.require; "
                "let it be `auto`, or require nothing"
            )


class HealthConfig(ConfigNode, frozen=True, kw_only=True):
    """Conditions under which a replica counts as broken, and how one leaves."""

    check_period_s: Seconds = 1.0
    """How often every replica is asked whether it is well."""
    stuck_after_s: Seconds = 120.0
    """A step that takes longer than this is taken for a hang, and the replica is replaced."""
    drain_s: Seconds = 30.0
    """How long a replica that must go may finish what it has."""


class RegistryConfig(ConfigNode, frozen=True, kw_only=True):
    """Who knows which replicas there are."""

    replicas: Annotated[int, msgspec.Meta(ge=1, le=5)] = 1
    """Registries. Each replica reports to each, and gateways take all that they hear together, so
    that a node that is lost or cut off takes no one's place among replicas. 3 where nodes may
    fail; while half of them or more are away, no replica changes its role."""


class RayConfig(ConfigNode, frozen=True, kw_only=True):
    """The cluster the replicas run on."""

    address: str = ""
    """The address of the cluster to join. Empty: start one on this machine, and stop it at the end.

    In a joined cluster the gateway listens on the node it is placed on: `gateway.host` decides who
    reaches it there.
    """
    app_name: Annotated[str, msgspec.Meta(pattern="^[A-Za-z0-9][A-Za-z0-9_.-]*$")] = "baton"
    """The name of the Serve application. Several, each with a model and ports of its own, can run
    beside each other on a cluster."""
    lend_models: bool = True
    """Nodes take what they lack of the model from nodes that have it, before they ask where it
    comes from; and what is only on one node, such as a folder, at all."""
    runtime_env: dict[str, Any] = msgspec.field(default_factory=dict)
    """What Ray prepares for the processes of `baton deploy`, as it takes it: env_vars, pip,
    working_dir (a URI). No place for secrets: Ray keeps and shows it."""
    dashboard: bool = False
    """Start Ray's dashboard with a local cluster (port 8265)."""


class DeploymentConfig(ConfigNode, frozen=True, kw_only=True):
    """One model, served by two pools of replicas behind a gateway."""

    model: str = DEMO_MODEL
    """A folder in Hugging Face format, a Hugging Face id (`org/name` or `org/name@revision`), the
    URL of such a folder (`https://`, `s3://` or any that fsspec knows), or `demo`. What is not here
    is fetched, once per node."""
    served_model_name: str = ""
    """What clients call it. Empty: the last part of `model`."""
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = "auto"
    """The dtype of weights and KV. `auto` takes what the checkpoint says, but on
    a CPU bfloat16 for float16, which it has no operators for."""
    quantize: Literal["none", "wide", "int8", "int4"] = "none"
    """Round the weights to so many bits when they are loaded: on a CPU that makes decoding faster,
    and answers a little worse. `int4` leaves the table of tokens and the head in eight. What a
    checkpoint has quantised stays so where the device multiplies it, unless this is `wide`."""
    deterministic: bool = False
    """On a GPU, too, let what a request is answered follow from it alone, to the bit: not from the
    requests beside it, nor from how its prompt is cut, found in a cache or drafted. Products and
    attention are then computed in tiles of one size and no library is used, which is slower. Not
    for several GPUs a replica, nor for DeepSeek V4 on a GPU. On a CPU it is so anyway, but for
    latent attention, whose prompts this makes slower; three `tensor` ranks or more, and `expert`
    ranks without `data` are refused."""
    attention_window: int | None = None
    """StreamingLLM: in layers where a token would see all before it, it sees so many of the last,
    itself among them, and the first `attention_sinks`. None: the model is served as it is."""
    attention_sinks: NonNegative = 4
    """Tokens at the beginning that all see beside their `attention_window`."""
    load_format: Literal["auto", "dummy"] = "auto"
    """`dummy` makes up random weights from `config.json` alone, for benchmarks."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """`auto` takes a GPU where there is one."""
    log_format: LogFormat = "text"
    """The format of the log of every process. `json`: an object a line, with ts, level, source,
    logger, message, and request_id where it is about a request."""
    log_level: LogLevel = "info"
    """The least that gateways and replicas write into their logs."""
    prefill: PrefillConfig = PrefillConfig()
    decode: DecodeConfig = DecodeConfig()
    planner: PlannerConfig = PlannerConfig()
    gateway: GatewayPoolConfig = GatewayPoolConfig()
    transfer: TransferConfig = TransferConfig()
    tiers: TiersConfig = TiersConfig()
    registry: RegistryConfig = RegistryConfig()
    health: HealthConfig = HealthConfig()
    ray: RayConfig = RayConfig()
    security: SecurityConfig = SecurityConfig()
    metrics: MetricsConfig = MetricsConfig()
    tracing: TracingConfig = TracingConfig()
    chaos: ChaosConfig = ChaosConfig()

    def __post_init__(self) -> None:
        small, large = sorted((self.prefill.cache.block_size, self.decode.cache.block_size))
        if large % small:
            raise ValueError(
                f"prefill.cache.block_size is {self.prefill.cache.block_size}, that of decode "
                f"{self.decode.cache.block_size}: one must divide the other, or KV cannot be "
                "handed over"
            )
        if self.gateway.port == self.gateway.grpc_port != 0:
            raise ValueError("gateway.port and gateway.grpc_port must differ")
        self._check_models()
        self._check_encryption()
        self._check_tiers()
        self._check_int4()
        self._check_planner()
        if self.attention_window is not None and self.attention_window < 1:
            raise ValueError(f"attention_window must be at least 1, not {self.attention_window}")

    def _check_models(self) -> None:
        drafts = self.decode.speculation.model
        for key, model in (("model", self.model), ("decode.speculation.model", drafts)):
            if why := why_no_model_url(model):
                raise ValueError(f"{key}: {why}")

    def _check_int4(self) -> None:
        pools = (self.prefill.cache, self.decode.cache)
        are_alike = len({(pool.kv_dtype, pool.block_size) for pool in pools}) == 1
        is_int4 = any(pool.kv_dtype == "int4" for pool in pools)
        if self.prefill.replicas and is_int4 and not are_alike:
            raise ValueError(
                "cache.kv_dtype int4: prefill and decode must have it both, and the same "
                "cache.block_size, for blocks in 4 bits are handed over as they are"
            )

    def _check_planner(self) -> None:
        if not self.planner.enabled:
            return
        if self.prefill.replicas and not self.planner.max_prefill:
            raise ValueError(
                "planner.max_prefill is 0, and prefill.replicas is not: a pool that serves one "
                "replica stays; set one of them to the other"
            )

    def _check_tiers(self) -> None:
        for name, pool in (("prefill", self.prefill), ("decode", self.decode)):
            if self.tiers.is_on and not pool.cache.prefix_caching:
                raise ValueError(
                    f"tiers need {name}.cache.prefix_caching: turn it on, or the tiers off"
                )

    def _check_encryption(self) -> None:
        transfer, is_encrypted = self.transfer, self.security.is_encrypted
        ways = {transfer.transport, *transfer.require} - {"auto"}  # which leaves out what is plain
        plain = sorted(ways - PRIVATE_TRANSPORTS)
        if is_encrypted and plain and not transfer.allow_plain:
            raise ValueError(
                f"transfer.transport {plain[0]!r} does not encrypt, and security asks for TLS; "
                "choose another, or set transfer.allow_plain if the network is your own"
            )

    @property
    def kv_ways(self) -> frozenset[str]:
        """The transports by which KV may come to a replica."""
        transfer = self.transfer
        chosen = {transfer.transport} - {"auto"}
        ways = frozenset(chosen or transfer.require or typing.get_args(TransportName)[1:])
        is_open = transfer.allow_plain or not self.security.is_encrypted
        return ways if is_open else ways & PRIVATE_TRANSPORTS

    @property
    def streaming(self) -> Streaming | None:
        if self.attention_window is None:
            return None
        return Streaming(self.attention_window, self.attention_sinks)

    def pool(self, role: Role) -> PoolConfig:
        return self.prefill if role is Role.PREFILL else self.decode

    def engine(self, role: Role) -> EngineConfig:
        """The engine configuration of that role's pool, with what depends on the other pools."""
        speculation = self.decode.speculation
        hands_over = self.prefill.replicas > 0  # other numbers of replicas are live; layouts stay
        is_kept = speculation.wants_features and (hands_over or speculation.features == "on")
        is_kept = is_kept and not self._has_ranks  # they are those of a model on one device
        engine = self.pool(role).engine
        if speculation.looks_up:  # prefill replicas may take the other role, and draft there
            engine = replace(engine, speculation=speculation)
        return replace(
            engine,
            kv_shares=self.gateway.kv_shares,
            keeps_features_for=speculation if is_kept else None,
        )

    @property
    def wants_features_in_vain(self) -> bool:
        """Features were asked for, and none are kept."""
        speculation = self.decode.speculation
        return speculation.wants_features and speculation.features == "on" and self._has_ranks

    @property
    def _has_ranks(self) -> bool:
        return any(pool.parallel.mesh.size > 1 for pool in (self.prefill, self.decode))

    @property
    def wanted_replicas(self) -> dict[Role, int]:
        """Replicas as clients count them: each engine is one; none of those that sleep."""
        if self.planner.is_asleep:
            return {}
        counts = {Role.DECODE: self.decode.num_engines, Role.PREFILL: self.prefill.num_engines}
        return {role: number for role, number in counts.items() if number}

    @property
    def started_replicas(self) -> dict[Role, int]:
        """Replicas as Serve counts them."""
        is_asleep = self.planner.is_asleep
        return {role: 0 if is_asleep else self.pool(role).replicas for role in Role}

    @property
    def cold_start_s(self) -> float | None:
        """Seconds after which replicas serve that are started for waiting requests; None: none
        are."""
        return self.planner.cold_start_s if self.planner.wakes else None

    @property
    def no_replica_grace_s(self) -> float:
        """How long a request waits while no decode replica takes requests: where there may be none,
        as long as the planner waits for a replica to start."""
        grace_s, rules = self.gateway.no_replica_grace_s, self.planner
        return max(grace_s, PATIENCE * rules.cold_start_s) if rules.wakes else grace_s

    @property
    def wants_weights(self) -> bool:
        """Whether this is about what the model says, not only about how fast."""
        return self.load_format != "dummy"

    @property
    def model_identity(self) -> str:
        """What decides which tokens come. Replicas with another never go on with a request."""
        parts = [self.model, self.load_format if self.load_format == "dummy" else ""]
        if self.attention_window is not None:
            parts.append(f"{self.attention_window}+{self.attention_sinks}")
        return " ".join(filter(None, parts))

    @property
    def model_name(self) -> str:
        name = Path(self.model).name or self.model
        if not self.model.startswith((".", "/", "~")) and scheme_of(self.model) in ("", "hf"):
            name = name.partition("@")[0] or name  # the revision of a Hugging Face id
        return self.served_model_name or name


def read_config(path: Path) -> DeploymentConfig:
    """Raises InvalidConfig with the paths to all mistakes."""
    try:
        document = path.read_bytes()
        raw = msgspec.yaml.decode(document)
    except OSError as error:
        raise InvalidConfig(f"cannot read {path}: {error.strerror}") from error
    except (ValueError, msgspec.DecodeError) as error:  # ValueError: month 13 of a date
        reason = " ".join(str(error).replace('in "<byte string>",', "at").split())
        raise InvalidConfig(f"{path}: not YAML: {reason}") from error
    if repeated := list(repeated_keys(document)):
        raise InvalidConfig(f"{path}: {ITEM.join(repeated)}")
    try:
        return parse_config({} if raw is None else raw)
    except InvalidConfig as error:
        first, *others = str(error).split(ITEM)
        schema = "`baton config schema` says what it may hold"
        raise InvalidConfig(ITEM.join((f"{path}: {first}; {schema}", *others))) from None


def configure(file: Path | None, changes: dict[str, Any]) -> DeploymentConfig:
    """The file, if there is one, and what was said besides. Raises InvalidConfig."""
    return override(DeploymentConfig() if file is None else read_config(file), changes)


def parse_config(raw: Any) -> DeploymentConfig:
    """Raises InvalidConfig with the paths to all mistakes."""
    mistakes = list(mistakes_in(raw, DeploymentConfig))
    if mistakes[1:]:
        raise InvalidConfig(ITEM.join((f"{len(mistakes)} mistakes", *mistakes)))
    if mistakes:
        raise InvalidConfig(mistakes[0])
    return msgspec.convert(raw, DeploymentConfig)


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
