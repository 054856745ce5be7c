"""The setup of a simulated fleet: replicas, links, gateways."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Annotated

import msgspec

from baton.core.config_node import Count
from baton.core.errors import InvalidConfig
from baton.core.kv_layout import ITEM_BYTES, KvLayout
from baton.core.step_times import StepTimes
from baton.engine.config import SchedulerConfig
from baton.platform.planner.config import PlannerConfig
from baton.platform.simulator.fleet.tenants import SimulatedTenant
from baton.platform.simulator.setup import SloClass

DTYPE = "bfloat16"
Rate = Annotated[float, msgspec.Meta(gt=0)]


class Device(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One replica: how long its steps take, and how much it holds."""

    step_times: StepTimes
    num_blocks: Count = 3000
    block_size: Count = 512
    token_bytes: Rate = 160_000.0
    """Bytes of a token's KV, all layers."""
    max_batch_tokens: Count = 2048
    max_running: Count = 64
    prefill_chunk: Count | None = None
    max_open: Count = 128
    """Requests that a decode replica has at once."""
    max_queued_tokens: Count = 32_768
    """Prompt tokens that a prefill replica queues; more are refused."""

    @property
    def layout(self) -> KvLayout:
        width = max(round(self.token_bytes / (2 * ITEM_BYTES[DTYPE])), 1)
        return KvLayout(
            model_fingerprint=b"simulated",
            dtype=DTYPE,
            num_layers=1,
            num_kv_heads=1,
            head_dim=width,
            block_size=self.block_size,
        )

    @property
    def scheduler(self) -> SchedulerConfig:
        return SchedulerConfig(
            max_batch_tokens=self.max_batch_tokens,
            max_running=self.max_running,
            prefill_chunk=self.prefill_chunk,
        )


class Links(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Links between clients, gateways and replicas."""

    front_s: Annotated[float, msgspec.Meta(ge=0)] = 0.0
    """Seconds from a client to the gateway's router: HTTP, a template, tokens."""
    latency_s: Annotated[float, msgspec.Meta(ge=0)] = 0.001
    """Seconds that a message takes from one process to another, however short."""
    bytes_per_s: Rate = 10e9
    """Bytes a second at which a replica receives KV."""


class Part(StrEnum):
    """Parts of a gateway that can be switched off, to measure their value."""

    STEP_MODEL = "step-model"
    """Replicas' own step times: prompts are predicted at one rate for all."""
    GOSSIP = "gossip"
    """Replicas' reports about prompts from other gateways."""
    SESSIONS = "sessions"
    """Session keys; without them conversations are recognised by their prefixes."""
    PULLS = "pulls"
    """Prefixes fetched from other replicas' caches."""


def parts(names: Iterable[str]) -> frozenset[Part]:
    """Raises InvalidConfig that names all there are."""
    for name in names:
        if name not in set(Part):
            raise InvalidConfig(f"--without {name}: give one of {', '.join(Part)}")
    return frozenset(map(Part, names))


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetSetup:
    num_prefill: int
    """0: decode replicas compute their prompts themselves."""
    num_decode: int
    num_gateways: int = 1
    gateway_dies_s: float | None = None
    """Time at which the first gateway dies; clients with a request there ask another one, anew."""
    gateway_joins_s: float | None = None
    """Time at which one more gateway begins."""
    prefill: Device
    decode: Device
    links: Links = field(default_factory=Links)
    without: frozenset[Part] = frozenset()
    max_waiting: int | None = None
    """Requests that wait for a place in one gateway; more are rejected. None: no limit."""
    slo_ttft_s: float = 10.0
    slo_classes: Sequence[SloClass] = ()
    tenants: Sequence[SimulatedTenant] = ()
    """Tenants with weights and limits, of which each gateway has an equal part."""
    is_noisy: bool = True
    """Whether steps scatter by the spread of their step times."""
    rules: PlannerConfig | None = None
    """Planner rules by which the numbers of replicas change; None: they are fixed."""
    cold_start_s: float = 30.0
    """Seconds that a replica takes until it serves."""
    flip_s: float = 2.0
    """Seconds that a replica takes from its last request in one role until it serves in the other.
    """
