"""Which way `auto` takes, at first, when it knows better, and when a way fails."""

from __future__ import annotations

from functools import partial

import pytest
from tests.kv_transfer.transport.auto.neighbours import ADDRESS, SENDER, Neighbours
from tests.kv_transfer.world import KV_BYTES, connected

from baton.core.errors import TransferAborted, TransferCut, TransferError, TransportFailed
from baton.core.ids import Epoch, TransferId, new_epoch
from baton.core.wire_security import WireSecurity
from baton.kv_transfer.transport.auto import auto, known_peers
from baton.kv_transfer.transport.auto.auto import AutoTransport
from baton.kv_transfer.transport.auto.known_peers import Facts
from baton.kv_transfer.transports import TRANSPORTS, TransportParts, create_transport
from baton.proto.channels import Channels


async def test_the_first_transfer_goes_by_grpc_and_waits_for_nothing() -> None:
    it = Neighbours({"shm": 1.0, "grpc": 2.0})

    assert await it.fetch() == "grpc"

    assert (it.control.num_met, it.control.num_offered) == (0, 0)


async def test_the_fastest_way_is_taken_once_all_are_measured() -> None:
    for fastest in ("shm", "gloo", "grpc"):
        piece_s = {name: 1.0 if name == fastest else 2.0 for name in ("shm", "gloo", "grpc")}
        it = Neighbours(piece_s)
        await it.fetch()
        await it.auto.measured()

        assert await it.fetch() == fastest
        assert await it.fetch() == fastest
        assert it.control.num_met == 1


async def test_of_ways_about_equally_fast_the_first_by_name_is_taken() -> None:
    it = Neighbours({"shm": 1.0, "gloo": 0.95, "grpc": 0.9})
    await it.fetch()
    await it.auto.measured()

    assert await it.fetch() == "shm"


async def test_a_way_that_cannot_be_measured_is_not_taken() -> None:
    it = Neighbours({"shm": 1.0, "gloo": 2.0, "grpc": 3.0})
    it.by_name["shm"].error = TransportFailed("another network")
    await it.fetch()
    await it.auto.measured()

    assert await it.fetch() == "gloo"
    (shm, _, _) = it.auto.ways()
    assert (shm.name, shm.bytes_per_s) == ("shm", None)
    assert "another network" in shm.reason


async def test_a_way_that_could_not_be_measured_is_measured_later() -> None:
    it = Neighbours({"shm": 1.0, "grpc": 2.0})
    it.by_name["shm"].error = TransferError("no blocks can be spared for a probe")
    await it.fetch()
    await it.auto.measured()
    it.by_name["shm"].error = None
    assert await it.fetch() == "grpc"

    it.clock.now += auto.UNMEASURED_S
    await it.fetch()
    await it.auto.measured()

    assert await it.fetch() == "shm"


async def test_a_way_that_fails_is_left_alone_for_a_while() -> None:
    it = Neighbours({"shm": 1.0, "gloo": 2.0, "grpc": 3.0})
    await it.fetch()
    await it.auto.measured()
    it.by_name["shm"].error = TransportFailed("the map is gone")

    with pytest.raises(TransportFailed, match="the map is gone"):
        await it.fetch()

    assert await it.fetch() == "gloo"
    assert it.auto.ways()[0].is_demoted
    assert it.auto.metrics()['transport_demotions_total{transport="shm"}'] == 1
    it.by_name["shm"].error = None
    it.clock.now += auto.DEMOTED_S + 1
    assert await it.fetch() == "shm"


async def test_a_single_cut_is_the_networks_fault_two_in_a_row_the_ways() -> None:
    it = Neighbours({"shm": 1.0, "grpc": 2.0})
    await it.fetch()
    await it.auto.measured()
    for number_of_cuts, follows in ((1, "shm"), (2, "grpc")):
        it.by_name["shm"].error = TransferCut("a broken wire")
        for _ in range(number_of_cuts):
            with pytest.raises(TransferCut):
                await it.fetch()
        it.by_name["shm"].error = None

        assert await it.fetch() == follows


async def test_what_the_sender_refuses_is_not_held_against_the_way() -> None:
    it = Neighbours({"shm": 1.0, "grpc": 2.0})
    await it.fetch()
    await it.auto.measured()
    it.by_name["shm"].error = TransferAborted("it was cancelled")
    for _ in range(5):
        with pytest.raises(TransferAborted):
            await it.fetch()

    it.by_name["shm"].error = None
    assert await it.fetch() == "shm"


async def test_peers_of_one_host_are_measured_once_and_again_after_a_while() -> None:
    it = Neighbours({"shm": 1.0, "gloo": 2.0, "grpc": 3.0})

    async def learn_of(*numbers: int) -> set[str]:
        for number in numbers:
            await it.fetch(sender=Epoch(f"p{number}"), address=f"there:{number}")
            await it.auto.measured()
        return {
            await it.fetch(sender=Epoch(f"p{number}"), address=f"there:{number}")
            for number in numbers
        }

    assert await learn_of(1, 2, 3) == {"shm"}
    num_probes, num_tries = len(auto.PROBE_BYTES) * 3, 3
    assert (it.control.num_met, it.control.num_offered) == (3, num_probes + 2 * num_tries)

    it.control.facts = Facts(("shm", "gloo", "grpc"), "another host", "cpu")
    assert await learn_of(4) == {"shm"}
    assert it.control.num_offered == 2 * (num_probes + num_tries)
    it.control.facts = Facts(("shm", "gloo", "grpc"), "", "cpu")  # it does not say which
    assert await learn_of(5, 6) == {"shm"}
    assert it.control.num_offered == 4 * num_probes + 2 * num_tries

    it.control.facts = Facts(("shm", "gloo", "grpc"), "host", "cpu")
    it.clock.now += known_peers.SHARED_S
    it.by_name["shm"].piece_s = 9.0
    assert await learn_of(7) == {"gloo"}


async def test_a_way_that_leads_to_one_peer_of_a_host_is_not_believed_to_lead_to_another() -> None:
    it = Neighbours({"shm": 1.0, "gloo": 2.0, "grpc": 3.0})
    await it.fetch()
    await it.auto.measured()
    assert await it.fetch() == "shm"
    fetch_from_another = partial(it.fetch, sender=Epoch("another"), address="there:2")
    it.by_name["shm"].error = TransportFailed("no memory is shared with this one")

    for _ in range(2):
        await fetch_from_another()
        await it.auto.measured()
        assert await fetch_from_another() == "gloo"
        it.clock.now += auto.UNMEASURED_S
    it.by_name["shm"].error = None
    await fetch_from_another()
    await it.auto.measured()

    assert await fetch_from_another() == "shm"


async def test_what_was_learnt_belongs_to_one_incarnation() -> None:
    it = Neighbours({"shm": 1.0, "grpc": 2.0})
    await it.fetch()
    await it.auto.measured()
    assert await it.fetch() == "shm"

    assert await it.fetch(sender=new_epoch()) == "grpc"


async def test_a_sender_that_knows_no_auto_is_reached_by_grpc() -> None:
    it = Neighbours({"shm": 1.0, "grpc": 2.0})
    it.control.facts = TransportFailed("this replica does not send by 'auto'")
    await it.fetch()
    await it.auto.measured()

    assert await it.fetch() == "grpc"
    assert [way.name for way in it.auto.ways()] == ["grpc"]


async def test_a_peer_that_could_not_be_met_is_met_later() -> None:
    it = Neighbours({"shm": 1.0, "grpc": 2.0})
    facts, it.control.facts = it.control.facts, TransferCut("not there yet")
    await it.fetch()
    await it.auto.measured()
    it.control.facts = facts

    assert await it.fetch() == "grpc"
    await it.auto.measured()
    assert await it.fetch() == "shm"


async def test_only_so_many_peers_are_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(known_peers, "MAX_PEERS", 1)
    it = Neighbours({"shm": 1.0})

    for port in range(3):
        it.auto._peers.at(f"there:{port}", SENDER)

    assert [peer.address for peer in it.auto._peers] == ["there:2"]


async def test_closing_ends_what_is_being_measured() -> None:
    it = Neighbours({"shm": 1.0, "grpc": 2.0})
    await it.fetch()
    [measuring] = [peer.measuring for peer in it.auto._peers]
    assert measuring is not None

    await it.auto.close()

    assert measuring.done()


async def test_two_real_replicas_of_one_host_come_to_share_memory(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    limits = ("auto.auto.MEETING_TIMEOUT_S", "auto.probe.MAX_PROBE_S")
    for limit in (*limits, "tcp.pool.CONNECTING_S", "tcp.tcp.HELLO_TIMEOUT_S"):
        monkeypatch.setattr(f"baton.kv_transfer.transport.{limit}", 60.0)  # of a busy machine
    async with connected("auto") as it:
        first = await it.grant()
        await it.compute()
        assert (await it.fetch(first)).transport == "grpc"
        assert isinstance(it.inner, AutoTransport)
        await it.inner.measured()

        measured = {way.name: way.bytes_per_s for way in it.inner.ways()}

        assert {"shm", "tcp", "grpc"} <= measured.keys()
        assert all(measured.values()), {way.name: way.reason for way in it.inner.ways()}
        again = TransferId("kv-again")
        second = await it.grant(again)
        await it.compute(transfer_id=again)
        assert (await it.fetch(second)).num_bytes == KV_BYTES
        await it.on_d.call(it.decode.adopt)
        await it.on_d.call(lambda: it.decode.adopt(again))
        assert it.decode.holds_kv() and it.decode.holds_kv(again)
        await it.assert_nothing_is_left()


@pytest.mark.parametrize("allows_plain_kv", [False, True])
async def test_with_tls_no_way_that_does_not_encrypt_is_a_way_unless_that_is_allowed(
    allows_plain_kv: bool,
) -> None:
    security = WireSecurity(certificate_pem=b"a certificate", allows_plain_kv=allows_plain_kv)
    transport = create_transport("auto", TransportParts(channels=Channels(security)))
    assert isinstance(transport, AutoTransport)
    theirs = Facts(names=tuple(TRANSPORTS), host="elsewhere", device="cpu")

    ways = {name for name, way in transport._ways.items() if way.fits(ADDRESS, theirs)}

    assert "grpc" in ways
    assert ("tcp" in ways, "gloo" in ways) == (allows_plain_kv, allows_plain_kv)
