"""All replicas are asked for their accounts at once."""

from __future__ import annotations

import pytest
from tests.in_process_fleet import running_fleet

from baton.core.kv_pool import Holder, HolderKind
from baton.gateway.fleet.links import links as links_module
from baton.proto import replica_pb2 as pb


async def test_every_replica_is_asked_for_its_books_and_one_that_is_gone_says_so() -> None:
    async with running_fleet(prefill=1, decode=2) as running:
        gone = running.replicas["decode-2"].info  # type: ignore[index]
        await running.crash(gone.replica_id)

        replies = await running.dispatcher.fleet.links.inspect()

        assert len(replies) == 3
        assert isinstance(replies.pop(gone.epoch), Exception)
        for epoch, reply in replies.items():
            assert isinstance(reply, pb.InspectReply)
            assert reply.epoch == epoch
            assert reply.audit.num_blocks == reply.audit.free


async def test_what_is_wrong_with_blocks_is_told_to_who_asks_for_an_audit(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(links_module, "AUDIT_TIMEOUT_S", 0.0)
    monkeypatch.setattr(links_module, "AUDIT_S_PER_BLOCK", 1.0)  # large pools have longer
    async with running_fleet(prefill=0, decode=1) as running:
        [(name, engine)] = running.engines.items()
        lost = Holder(HolderKind.REQUEST, "lost")
        await running.replicas[name].worker.core.thread.call(lambda: engine.pool.grow(lost, 1))
        links = running.dispatcher.fleet.links

        [counted] = (await links.inspect()).values()
        [audited] = (await links.inspect(with_audit=True)).values()

        assert isinstance(counted, pb.InspectReply) and isinstance(audited, pb.InspectReply)
        assert (counted.audit.live, audited.audit.live) == (1, 1)
        assert counted.audit.free == audited.audit.free == counted.audit.num_blocks - 1
        assert not counted.audit.violations
        assert "request lost is unknown to its owner" in audited.audit.violations[0]
        await running.replicas[name].worker.core.thread.call(lambda: engine.pool.release(lost))
