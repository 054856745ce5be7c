"""Whether the parts of a deployment fit each other."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta

from baton.core.ids import ReplicaId
from baton.core.kv_layout import KvLayout
from baton.core.wire_security import PLAIN, WireSecurity
from baton.platform.doctor.cluster_checks import (
    check_handoffs,
    check_ports,
    check_required,
    check_security,
)
from baton.platform.doctor.finding import Status

P, D, E = map(ReplicaId, "pde")
NOW = datetime(2026, 11, 21, tzinfo=UTC)
LAYOUT = KvLayout(
    model_fingerprint=b"m", dtype="float32", num_layers=2, num_kv_heads=2, head_dim=4, block_size=16
)
ALIKE = {P: "compiled", D: "compiled", E: "compiled"}
SECURE = WireSecurity(certificate_pem=b"c", tokens=("t",))


def test_equal_layouts_can_be_handed_over() -> None:
    found = check_handoffs({P: LAYOUT}, {D: LAYOUT, E: LAYOUT}, ALIKE)

    assert found.status is Status.OK
    assert found.seen == "1 x 2 pairs fit (float32, 16 tokens a block)"


def test_another_model_is_named_once_with_all_its_pairs() -> None:
    other = replace(LAYOUT, model_fingerprint=b"n")

    found = check_handoffs({P: LAYOUT}, {D: other, E: other}, ALIKE)

    assert found.status is Status.FAIL
    assert found.seen.startswith("p -> d, p -> e: KV cannot be handed over: model_fingerprint")
    assert "BATON_CPU_KERNELS" not in found.remedy


def test_kinds_of_cpu_that_add_unlike_each_other_are_named_with_a_remedy() -> None:
    other = replace(LAYOUT, model_fingerprint=b"n")

    found = check_handoffs({P: LAYOUT}, {D: other}, {P: "compiled", D: "compiled, AVX-512 BF16"})

    assert found.seen.endswith("unlike each other: compiled | compiled, AVX-512 BF16")
    assert "BATON_CPU_KERNELS names a kind of CPU that all of them are" in found.remedy


def test_no_security_is_said_and_a_bare_token_warned_about() -> None:
    assert check_security(PLAIN, None, NOW).status is Status.OK
    assert "all that reach" in check_security(PLAIN, None, NOW).seen
    assert check_security(replace(PLAIN, tokens=("t",)), None, NOW).status is Status.WARN


def test_a_certificate_near_its_end_is_warned_about() -> None:
    soon, later = NOW + timedelta(days=3), NOW + timedelta(days=90)

    assert check_security(SECURE, soon, NOW).status is Status.WARN
    assert check_security(SECURE, later, NOW).status is Status.OK
    assert "mutual TLS, a cluster token" in check_security(SECURE, later, NOW).seen


def test_a_taken_port_fails_unless_it_is_our_own_gateway() -> None:
    taken = ["gateway.port: 127.0.0.1:8000: Address already in use"]

    assert check_ports(taken, is_serving=False).status is Status.FAIL
    assert check_ports(taken, is_serving=True).status is Status.OK
    assert check_ports([], is_serving=False).status is Status.OK


def test_one_of_the_required_transports_must_have_what_it_needs() -> None:
    lacking = {"nccl": "a CUDA device", "nixl": "NIXL", "grpc": ""}

    neither = check_required(("nccl", "nixl"), lacking)

    assert neither.status is Status.FAIL
    assert neither.seen == "nccl needs a CUDA device; nixl needs NIXL"
    assert check_required(("nixl", "grpc"), lacking).status is Status.OK
    assert check_required((), lacking).status is Status.OK
