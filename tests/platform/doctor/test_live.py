"""A fleet examined while it serves: its machines, clocks, layouts, and every way between them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.in_process_fleet import Fleet, running_fleet
from tests.platform.nodes import NODE
from tests.secured_clusters import write_files

from baton.core.wire_security import PLAIN, WireSecurity
from baton.platform.config.deployment import DeploymentConfig, override
from baton.platform.doctor.finding import Finding, Status, is_healthy
from baton.platform.doctor.live import clock_skew, registries_of
from baton.platform.doctor.run import Diagnosis, examine_live, examine_security, why_chosen
from baton.platform.machine.node import read_node
from baton.proto import replica_pb2 as pb

PROMPT = tuple(range(40))


async def diagnose(fleet: Fleet, security: WireSecurity = PLAIN) -> Diagnosis:
    status = await fleet.dispatcher.status()
    return await examine_live(fleet.config, security, status, read_node())


def of(name: str, diagnosis: Diagnosis) -> list[Finding]:
    return [finding for finding in diagnosis.findings if finding.name == name]


async def test_every_way_between_replicas_is_measured() -> None:
    async with running_fleet(prefill=1, decode=2) as fleet:
        found = await diagnose(fleet)
        await fleet.assert_nothing_is_held(timeout_s=60.0)

    pairs = {(way.sender, way.receiver) for way in found.ways}
    assert is_healthy(found.findings), found.findings
    assert pairs == {
        ("prefill-1", "decode-2"),
        ("prefill-1", "decode-3"),
        ("decode-2", "decode-3"),
        ("decode-3", "decode-2"),
    }
    by_grpc = [way for way in found.ways if way.transport == "grpc"]
    assert all(way.works and way.bytes_per_s > 0 and way.latency_s for way in by_grpc)
    assert len(of("KV transport", found)) == len(pairs)
    assert of("handoff", found)[0].seen.startswith("1 x 2 pairs fit")
    assert of("equal versions", found)[0].seen == "the same on all 4"
    assert [finding.status for finding in of("clock", found)] == [Status.OK]


async def test_the_configured_transport_is_the_one_that_is_taken_and_required() -> None:
    async with running_fleet(changes={"transfer.transport": "grpc"}) as fleet:
        found = await diagnose(fleet)

    assert [way.transport for way in found.ways if way.chosen] == ["grpc"]
    assert of("KV transport", found)[0].status is Status.OK


async def test_a_required_transport_that_leads_nowhere_fails() -> None:
    async with running_fleet() as fleet:
        fleet.config = override(
            fleet.config, {"transfer.transport": "auto", "transfer.require": ["nixl"]}
        )
        found = await diagnose(fleet)

    assert [finding.status for finding in of("KV transport", found)] == [Status.FAIL]
    assert not is_healthy(found.findings)


async def test_a_secured_fleet_is_examined_with_its_certificates(tmp_path: Path) -> None:
    changes: dict[str, Any] = {
        f"security.{name}": path for name, path in write_files(tmp_path).items()
    }
    async with running_fleet(changes=changes) as fleet:
        security, finding = examine_security(fleet.config)
        assert security is not None
        found = await diagnose(fleet, security)
        stranger = await diagnose(fleet)

    assert finding.seen.startswith("mutual TLS, a cluster token")
    assert is_healthy(found.findings), found.findings
    assert all("TLS" in finding.seen for finding in of("node", stranger))
    assert stranger.ways == []


async def test_replicas_that_refuse_our_token_fail(tmp_path: Path) -> None:
    changes: dict[str, Any] = {
        f"security.{name}": path for name, path in write_files(tmp_path).items()
    }
    async with running_fleet(changes=changes) as fleet:
        other = tmp_path / "of-another-cluster"
        other.write_text("the-token-of-another-cluster\n")
        other.chmod(0o600)
        security, _ = examine_security(override(fleet.config, {"security.token_file": str(other)}))
        assert security is not None
        found = await diagnose(fleet, security)

    assert {finding.status for finding in of("node", found)} == {Status.FAIL}
    assert all("cluster token" in finding.seen for finding in of("node", found))


async def test_a_replica_that_the_gateway_does_not_reach_fails() -> None:
    async with running_fleet() as fleet:
        status = await fleet.dispatcher.status()
        status["pools"]["decode"][0] |= {"is_reachable": False, "trouble": "no route to host"}
        found = await examine_live(fleet.config, PLAIN, status, NODE)

    [finding] = of("replica", found)
    assert finding.status is Status.FAIL
    assert finding.where == "decode-2"
    assert "no route to host" in finding.seen


@pytest.mark.parametrize("ahead_s", [0.0, 2.5, -30.0])
def test_a_skew_is_found_however_long_the_peer_thinks(ahead_s: float) -> None:
    there_and_back_s, thinking_s = 0.2, 3.0
    arrived = 100.0 + there_and_back_s / 2 + ahead_s

    skew, uncertainty = clock_skew(
        100.0, arrived, arrived + thinking_s, 100.0 + there_and_back_s + thinking_s
    )

    assert skew == pytest.approx(ahead_s)
    assert uncertainty == pytest.approx(there_and_back_s / 2)


def test_what_auto_took_is_told_with_what_it_knew() -> None:
    auto = override(DeploymentConfig(), {"transfer.transport": "auto"})
    known = [
        pb.KnownWay(transport="shm", bytes_per_s=5e9, is_chosen=True),
        pb.KnownWay(transport="grpc", bytes_per_s=1e9),
        pb.KnownWay(transport="gloo", is_demoted=True, reason="it timed out"),
    ]

    assert why_chosen(auto, "shm", known) == (
        "auto, of shm 5.00 GB/s, grpc 1.00 GB/s; gloo: it timed out"
    )
    assert why_chosen(auto, "grpc", known) == ""
    assert why_chosen(auto, "grpc", []) == ""


def test_a_registry_that_is_not_heard_or_knows_fewer_replicas_than_another_is_a_warning() -> None:
    told = [
        {"registry": "Registry", "is_heard": True, "num_replicas": 3, "trouble": ""},
        {"registry": "Registry-1", "is_heard": True, "num_replicas": 2, "trouble": ""},
        {"registry": "Registry-2", "is_heard": False, "num_replicas": 9, "trouble": "away"},
    ]

    found = registries_of({"pools": {}, "registries": told})

    assert [one.status for one in found] == [Status.OK, Status.WARN, Status.WARN]
    assert [one.where for one in found] == ["Registry", "Registry-1", "Registry-2"]
    assert "2 replicas, and another one 3" in found[1].seen and "away" in found[2].seen
    assert registries_of({"pools": {}}) == []
