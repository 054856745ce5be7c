"""The whole examination: this machine, then the running deployment, if any.

here       versions, security, ports, memory, limits, cores, GPUs, room for tiers
replicas   the same for each of their machines; clocks, layouts; every KV transport
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from random import Random
from typing import Any

from baton.core.errors import CheckpointError, InvalidConfig
from baton.core.replicas import Role
from baton.core.wire_security import WireSecurity
from baton.engine.checkpoint.load import read_config
from baton.engine.checkpoint.quantized.methods import parse_layout
from baton.engine.models.config.description import read_json
from baton.kv_transfer.transports import AUTO, TRANSPORTS
from baton.platform.config.deployment import DeploymentConfig
from baton.platform.doctor.cluster_checks import (
    check_handoffs,
    check_ports,
    check_required,
    check_security,
)
from baton.platform.doctor.demand import demand_of, served_dtype
from baton.platform.doctor.finding import Finding, fail, ok
from baton.platform.doctor.gpu_checks import check_gpus
from baton.platform.doctor.live import (
    LiveSystem,
    ReplicaExamination,
    registries_of,
    replicas_of,
)
from baton.platform.doctor.matrix import (
    MAX_PAIRS,
    Pair,
    TransportMeasurement,
    check_sample,
    check_ways,
    pairs_of,
    sampled,
)
from baton.platform.doctor.node_checks import Demand, check_clock, check_node
from baton.platform.doctor.versions import (
    check_equal_versions,
    check_versions,
    wanted_versions,
)
from baton.platform.machine.node import NodeFacts, read_node
from baton.platform.machine.ports import check_bindable
from baton.platform.models.adapter_folders import with_adapters
from baton.platform.models.draft_folder import with_draft
from baton.platform.models.model_folder import find_model
from baton.platform.security.connections import is_token_given, load_security
from baton.platform.security.ray_token import settled
from baton.proto import replica_pb2 as pb
from baton.proto.channels import Channels

NOT_BETWEEN_PROCESSES = "memory"


@dataclass(slots=True)
class Diagnosis:
    findings: list[Finding] = field(default_factory=list)
    ways: list[TransportMeasurement] = field(default_factory=list)


def examine_here(config: DeploymentConfig, *, is_serving: bool) -> tuple[NodeFacts, list[Finding]]:
    """`is_serving`: replicas already run, so their resources are in use."""
    facts = read_node(_folders(config))
    findings = [check_versions(facts.versions, wanted_versions())]
    findings.append(check_ports(list(_taken_ports(config)), is_serving))
    demand: Demand | None = None
    if not is_serving and not config.ray.address:
        try:
            folder = find_model(config.model, wants_weights=False)  # no download to speak of
            config = with_draft(config, folder, wants_weights=False)
            config = with_adapters(config)
            is_on_gpu = _is_on_gpu(config, facts)
            demand = demand_of(config, folder, is_on_gpu=is_on_gpu)
            if not is_on_gpu:
                findings += advise_rounding(config, folder)
        except CheckpointError as error:
            findings.append(fail("model", str(error), "give a model that is here, with `model`"))
    findings += check_node(facts, demand)
    findings += check_gpus(facts, config.device)
    lacking = {name: kind.lacks() for name, kind in TRANSPORTS.items()}
    findings.append(check_required(required_transports(config), lacking))
    return facts, findings


def advise_rounding(config: DeploymentConfig, folder: Path) -> Iterator[Finding]:
    """The gain and loss of quantised weights on a CPU, if `quantize` is not set."""
    dtype = served_dtype(config.dtype, read_config(folder), "cpu")
    is_stored_so = parse_layout(read_json(folder / "config.json")) is not None
    if config.quantize != "none" or is_stored_so or dtype not in ("bfloat16", "float32"):
        return
    yield ok(
        "weights",
        f"{dtype}. Narrower ones decode faster: `--quantize int8` 1.9 times bfloat16 with one "
        "request, `int4` 2.8 times (a model of 0.6B, two cores of an EPYC); perplexity of the demo "
        "model grows by 0.2 % and by 1.3 %: docs/quality.md",
    )


def examine_security(config: DeploymentConfig) -> tuple[WireSecurity | None, Finding]:
    """The security that a replica on this machine would load; None if that fails."""
    try:
        found = settled(config.security, is_tool=True)
        security = load_security(found, allows_plain_kv=config.transfer.allow_plain)
    except InvalidConfig as error:
        return None, fail("security", str(error), "`baton certs` makes what is needed")
    expires_at: datetime | None = None
    if security.is_encrypted:
        from baton.platform.security.certificates import expires_at as read_expiry

        expires_at = read_expiry(security.certificate_pem)
    is_derived = found.default_token == "ray" and not is_token_given(found)
    return security, check_security(security, expires_at, datetime.now(UTC), is_derived=is_derived)


async def examine_live(
    config: DeploymentConfig,
    security: WireSecurity,
    status: dict[str, Any],
    here: NodeFacts,
    *,
    max_pairs: int = MAX_PAIRS,
) -> Diagnosis:
    """`status`: the gateway's /debug/status. `max_pairs`: limit of measured pairs, which grow with
    the square of the replicas."""
    replicas, findings = replicas_of(status)
    diagnosis = Diagnosis([*findings, *registries_of(status)])
    channels = Channels(security)
    try:
        system = LiveSystem(channels)
        examined, unexamined = await system.examine(replicas, _folders(config))
        diagnosis.findings += unexamined
        diagnosis.findings += list(_judge(config, here, examined))
        pairs = pairs_of([one.replica for one in examined])
        chosen = sampled(pairs, max_pairs, Random()) if len(pairs) > max_pairs else pairs
        if len(chosen) < len(pairs):
            diagnosis.findings.append(check_sample(pairs, chosen))
        for pair in chosen:
            known = known_ways(examined, pair)
            diagnosis.ways += await _measure_pair(config, security, system, pair, known)
    finally:
        await channels.close()
    diagnosis.findings += check_ways(diagnosis.ways, required_transports(config))
    return diagnosis


def required_transports(config: DeploymentConfig) -> tuple[str, ...]:
    """Transports of which one must work; empty: any."""
    if config.transfer.transport == AUTO:
        return config.transfer.require
    return (config.transfer.transport,)


def _judge(
    config: DeploymentConfig, here: NodeFacts, examined: Sequence[ReplicaExamination]
) -> Iterator[Finding]:
    """Check each machine once."""
    named = [(one.replica.replica_id, one.node) for one in examined]
    yield check_equal_versions([("here", here), *named])
    by_host = {one.node.host: one for one in reversed(examined)}
    for host, one in by_host.items():
        yield from _at(host, (check_clock(one.skew_s, one.uncertainty_s),))
        if host != here.host:
            yield from _at(host, check_node(one.node, None))
            yield from _at(host, check_gpus(one.node, config.device))
    by_role = {
        role: {one.replica.replica_id: one.layout for one in examined if one.replica.role is role}
        for role in Role
    }
    if by_role[Role.PREFILL] and by_role[Role.DECODE]:
        kernels = {one.replica.replica_id: one.kernels for one in examined}
        yield check_handoffs(by_role[Role.PREFILL], by_role[Role.DECODE], kernels)


async def _measure_pair(
    config: DeploymentConfig,
    security: WireSecurity,
    system: LiveSystem,
    pair: Pair,
    known: Sequence[pb.KnownWay],
) -> list[TransportMeasurement]:
    """Measure one transport at a time, since two would disturb each other."""
    receiver, sender = pair
    ways: list[TransportMeasurement] = []
    for name in TRANSPORTS:
        if name == NOT_BETWEEN_PROCESSES:
            continue
        if security.may_carry_kv(name):
            ways.append(await system.measure(pair, name, why_chosen(config, name, known)))
            continue
        unmeasured = TransportMeasurement(
            receiver=receiver.replica_id,
            sender=sender.replica_id,
            transport=name,
            error="it does not encrypt, and security asks for TLS (transfer.allow_plain)",
        )
        ways.append(unmeasured)
    return ways


def why_chosen(config: DeploymentConfig, transport: str, known: Sequence[pb.KnownWay]) -> str:
    """Why KV uses `transport`; empty if it does not. `known`: what `auto` knows at the receiver."""
    if config.transfer.transport != AUTO:
        return "transfer.transport" if transport == config.transfer.transport else ""
    if not any(way.is_chosen and way.transport == transport for way in known):
        return ""
    rates = [
        f"{way.transport} {way.bytes_per_s / 1e9:.2f} GB/s"
        for way in known
        if way.HasField("bytes_per_s")
    ]
    others = [f"{way.transport}: {way.reason}" for way in known if way.reason]
    return "; ".join((f"auto, of {', '.join(rates) or 'what it could not measure yet'}", *others))


def known_ways(examined: Sequence[ReplicaExamination], pair: Pair) -> list[pb.KnownWay]:
    """The transports that the receiver of `pair` knows to its sender."""
    receiver, sender = pair
    told = next(one.known_ways for one in examined if one.replica is receiver)
    return [way for way in told if way.epoch == sender.epoch]


def _at(where: str, findings: Iterable[Finding]) -> Iterator[Finding]:
    return (replace(finding, where=where) for finding in findings)


def _folders(config: DeploymentConfig) -> tuple[str, ...]:
    folder = config.tiers.disk.folder
    return (folder,) if folder else ()


def _is_on_gpu(config: DeploymentConfig, facts: NodeFacts) -> bool:
    if config.device == "auto":
        return facts.gpus is not None and bool(facts.torch_cuda)
    return config.device == "cuda"


def _taken_ports(config: DeploymentConfig) -> Iterator[str]:
    gateway = config.gateway
    for name, port in (("gateway.port", gateway.port), ("gateway.grpc_port", gateway.grpc_port)):
        try:
            check_bindable(gateway.host, port)
        except OSError as error:
            yield f"{name}: {gateway.host}:{port}: {error.strerror}"
