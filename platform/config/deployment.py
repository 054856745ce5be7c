"""The deployment as one frozen tree. A process is handed the branch it needs, never the root.

    model, served_model_name, adapters, dtype, quantize, deterministic, load_format, device
    attention_window, attention_sinks
    prefill, decode      one pool each: replicas, resources, the engine's cache and scheduler
    transfer             how KV travels between them
    tiers                where KV evicted from a device is kept: host memory, disk, a shared store
    planner              numbers of replicas that follow the load; off
    gateway              the ports, limits and keys clients meet
    registry             how many registries of replicas there are
    health               health checks and draining
    ray                  the cluster to join
    security             TLS and tokens between its processes
    metrics, tracing     Prometheus ports and OpenTelemetry spans
    chaos                fault injection; off

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
MAX_ADAPTERS = 64
"""A pass computes the update of every adapter that a row of it asks for."""

TransportName = Literal["auto", "memory", "shm", "grpc", "tcp", "gloo", "nccl", "nixl"]


class GatewayPoolConfig(GatewayConfig, frozen=True, kw_only=True):
    """The gateways: ports for clients, limits and keys."""

    replicas: Count = 1
    """Gateway processes; those on one machine share the ports."""
    placement: PlacementConfig = PlacementConfig()
    no_replica_grace_s: Seconds = 60.0
    """Seconds that a request waits while no decode replica accepts requests; then it gets a 503."""


class TransferConfig(ExchangeConfig, frozen=True, kw_only=True):
    """How KV travels from prefill to decode replicas."""

    transport: TransportName = "auto"
    """`auto` measures the transports to each peer and takes the fastest; with TLS, only encrypted
    ones. `memory` works only within one process, as in `baton verify`; `shm` on one machine."""
    require: tuple[str, ...] = ()
    """Transports that `auto` may choose from. A prompt whose KV could not travel by any of them is
    computed where it is decoded. Empty: any transport."""
    allow_plain: bool = False
    """Allow KV to travel unencrypted (tcp, gloo, nccl, nixl) although `security` asks for TLS."""
    pull: PullConfig = PullConfig()

    def __post_init__(self) -> None:
        ways = typing.get_args(TransportName)[1:]  # `auto` chooses, and is none itself
        for name in self.require:
            if name not in ways:
                raise ValueError(
                    f"transfer.require: {name!r} is not a transport; choose from {', '.join(ways)}"
                )
        if self.require and self.transport != "auto" and self.transport not in self.require:
            raise ValueError(
                f"transfer.transport {self.transport!r} is not one of transfer.require; add it "
                "there, or set transfer.transport to `auto`"
            )


class HealthConfig(ConfigNode, frozen=True, kw_only=True):
    """Conditions under which a replica counts as broken, and how one leaves."""

    check_period_s: Seconds = 1.0
    """Seconds between health checks of a replica."""
    stuck_after_s: Seconds = 120.0
    """Seconds after which an engine step counts as hung, or a write of KV that nobody waits for any
    more, and the replica is replaced."""
    drain_s: Seconds = 30.0
    """Seconds that a replica may finish its requests before it ends."""


class RegistryConfig(ConfigNode, frozen=True, kw_only=True):
    """The registries, which track the replicas."""

    replicas: Annotated[int, msgspec.Meta(ge=1, le=5)] = 1
    """Number of registries. Each replica reports to each of them, and gateways merge what they
    report, so that losing one removes no replica. Set 3 where nodes may fail; while half of them or
    more are away, no replica changes its role."""


class RayConfig(ConfigNode, frozen=True, kw_only=True):
    """The cluster the replicas run on."""

    address: str = ""
    """The address of the cluster to join. Empty: start one on this machine, and stop it at the end.

    In a joined cluster the gateway listens on the node where Ray places it, at `gateway.host`.
    """
    app_name: Annotated[str, msgspec.Meta(pattern="^[A-Za-z0-9][A-Za-z0-9_.-]*$")] = "baton"
    """The name of the Serve application. A cluster can run several, each with its own model and
    ports."""
    lend_models: bool = True
    """Nodes copy missing model files from other nodes that have them, before they download them; a
    model that is a folder on one node is only available this way."""
    runtime_env: dict[str, Any] = msgspec.field(default_factory=dict)
    """Ray's runtime_env for the processes of `baton deploy`: env_vars, pip, working_dir (a URI). Do
    not put secrets here: Ray stores and shows it."""
    dashboard: bool = False
    """Start Ray's dashboard with a local cluster (port 8265)."""


class DeploymentConfig(ConfigNode, frozen=True, kw_only=True):
    """One model, served by two pools of replicas behind a gateway."""

    model: str = DEMO_MODEL
    """A folder in Hugging Face format, a Hugging Face id (`org/name` or `org/name@revision`), the
    URL of such a folder (`https://`, `s3://` or any that fsspec knows), or `demo`. A remote model
    is fetched once per node."""
    served_model_name: str = ""
    """The model's name in the API. Empty: the last part of `model`."""
    adapters: dict[str, str] = msgspec.field(default_factory=dict)
    """LoRA adapters of the model, which requests ask for by name, as their `model`: each with its
    folder in PEFT's format, Hugging Face id or URL, found as `model` is. All replicas have all of
    them; another set restarts them."""
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = "auto"
    """The dtype of weights and KV. `auto` takes the checkpoint's; on a CPU, bfloat16 replaces
    float16, for which it has no operators."""
    quantize: Literal["none", "wide", "int8", "int4"] = "none"
    """Quantise the weights when they are loaded: on a CPU this makes decoding faster, and answers a
    little worse. `int4` keeps the embedding and the head in int8. Weights that the checkpoint has
    quantised stay so if the device can multiply them, unless this is `wide`."""
    deterministic: bool = False
    """Batch-invariant answers on a GPU, too: a request's answer depends, to the bit, on the request
    alone, not on other requests, chunking, prefix caching or drafts. Products and attention then
    use tiles of one size and no library, which is slower. Not for several GPUs per replica, nor for
    DeepSeek V4 on a GPU. A CPU is always batch-invariant but for the prompts of latent attention,
    which this makes slower; there, three `tensor` ranks or more, and `expert` ranks without `data`,
    are refused."""
    attention_window: int | None = None
    """StreamingLLM: in layers with full attention, a token attends to this many of the last tokens,
    itself included, and to the first `attention_sinks`. None: the model's own attention."""
    attention_sinks: NonNegative = 4
    """Tokens at the beginning that every token attends to besides its `attention_window`."""
    load_format: Literal["auto", "dummy"] = "auto"
    """`dummy` draws random weights by `config.json` alone, for benchmarks."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """The device of the replicas. `auto` takes a GPU if there is one."""
    log_format: LogFormat = "text"
    """The log format of every process. `json`: one object per line, with ts, level, source, logger,
    message and, for a request, request_id."""
    log_level: LogLevel = "info"
    """The lowest level that gateways and replicas log."""
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
                f"prefill.cache.block_size is {self.prefill.cache.block_size} and "
                f"decode.cache.block_size is {self.decode.cache.block_size}: KV can be handed "
                "over only if one divides the other; set both the same"
            )
        if self.gateway.port == self.gateway.grpc_port != 0:
            raise ValueError(
                "gateway.port and gateway.grpc_port must differ, and both are "
                f"{self.gateway.port}; change one of them"
            )
        self._check_models()
        self._check_adapters()
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

    def _check_adapters(self) -> None:
        if len(self.adapters) > MAX_ADAPTERS:
            raise ValueError(
                f"adapters has {len(self.adapters)}; at most {MAX_ADAPTERS} are served by one "
                "deployment"
            )
        for name, where in self.adapters.items():
            if not name or not name.isprintable() or " " in name:
                raise ValueError(
                    f"adapters has the name {name!r}: give one that is not empty, without spaces "
                    "and control characters"
                )
            if name == self.model_name or name in self.gateway.model_aliases:
                raise ValueError(
                    f"adapters.{name}: requests for `{name}` get the model itself (its name, or "
                    "one of gateway.model_aliases); give the adapter another name"
                )
            if not where.strip():
                raise ValueError(
                    f"adapters.{name} is empty; give a folder, a Hugging Face id or a URL"
                )
            if why := why_no_model_url(where):
                raise ValueError(f"adapters.{name}: {why}")

    def _check_int4(self) -> None:
        pools = (self.prefill.cache, self.decode.cache)
        are_alike = len({(pool.kv_dtype, pool.block_size) for pool in pools}) == 1
        is_int4 = any(pool.kv_dtype == "int4" for pool in pools)
        if self.prefill.replicas and is_int4 and not are_alike:
            raise ValueError(
                "cache.kv_dtype int4: blocks of 4 bits are handed over unchanged; set the same "
                "kv_dtype and cache.block_size for prefill and decode"
            )

    def _check_planner(self) -> None:
        if not self.planner.enabled:
            return
        if self.prefill.replicas and not self.planner.max_prefill:
            raise ValueError(
                "planner.max_prefill is 0 but prefill.replicas is not: the planner keeps at least "
                "one replica of a pool; set both to 0, or raise planner.max_prefill"
            )

    def _check_tiers(self) -> None:
        for name, pool in (("prefill", self.prefill), ("decode", self.decode)):
            if self.tiers.is_on and not pool.cache.prefix_caching:
                raise ValueError(
                    f"tiers need {name}.cache.prefix_caching; turn it on, or turn the tiers off"
                )

    def _check_encryption(self) -> None:
        transfer, is_encrypted = self.transfer, self.security.is_encrypted
        ways = {transfer.transport, *transfer.require} - {"auto"}  # `auto` takes no plain ones
        plain = sorted(ways - PRIVATE_TRANSPORTS)
        if is_encrypted and plain and not transfer.allow_plain:
            raise ValueError(
                f"transfer.transport {plain[0]!r} does not encrypt, and security asks for TLS; "
                "choose another, or set transfer.allow_plain if the network is your own"
            )

    @property
    def kv_ways(self) -> frozenset[str]:
        """The transports by which KV may reach a replica."""
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
        hands_over = self.prefill.replicas > 0  # replicas are live, layouts not
        is_kept = speculation.wants_features and (hands_over or speculation.features == "on")
        is_kept = is_kept and not self._has_ranks  # features need a model on one device
        engine = self.pool(role).engine
        if speculation.looks_up:  # prefill replicas may flip to decode, and draft then
            engine = replace(engine, speculation=speculation)
        return replace(
            engine,
            kv_shares=self.gateway.kv_shares,
            keeps_features_for=speculation if is_kept else None,
        )

    @property
    def ignores_features(self) -> bool:
        """Whether features were asked for, but none are kept."""
        speculation = self.decode.speculation
        return speculation.wants_features and speculation.features == "on" and self._has_ranks

    @property
    def _has_ranks(self) -> bool:
        return any(pool.parallel.mesh.size > 1 for pool in (self.prefill, self.decode))

    @property
    def wanted_replicas(self) -> dict[Role, int]:
        """Engines by role; empty while the pools are asleep."""
        if self.planner.is_asleep:
            return {}
        counts = {Role.DECODE: self.decode.num_engines, Role.PREFILL: self.prefill.num_engines}
        return {role: number for role, number in counts.items() if number}

    @property
    def started_replicas(self) -> dict[Role, int]:
        """Replicas by role, as Serve counts them."""
        is_asleep = self.planner.is_asleep
        return {role: 0 if is_asleep else self.pool(role).replicas for role in Role}

    @property
    def cold_start_s(self) -> float | None:
        """Seconds until replicas serve that start for waiting requests; None: none are started."""
        return self.planner.cold_start_s if self.planner.wakes else None

    @property
    def no_replica_grace_s(self) -> float:
        """Seconds that a request waits while no decode replica accepts requests: with scale to
        zero, as long as the planner waits for a replica to start."""
        grace_s, rules = self.gateway.no_replica_grace_s, self.planner
        return max(grace_s, PATIENCE * rules.cold_start_s) if rules.wakes else grace_s

    @property
    def wants_weights(self) -> bool:
        """Whether real weights are needed, rather than `dummy` ones."""
        return self.load_format != "dummy"

    @property
    def model_identity(self) -> str:
        """Everything on which tokens depend. A request never continues on a replica with another
        identity."""
        parts = [self.model, self.load_format if self.load_format == "dummy" else ""]
        if self.attention_window is not None:
            parts.append(f"{self.attention_window}+{self.attention_sinks}")
        parts += [f"{name}={where}" for name, where in sorted(self.adapters.items())]
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
    """The configuration of the file, if any, with `changes` applied. Raises InvalidConfig."""
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
