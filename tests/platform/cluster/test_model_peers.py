"""Which nodes of a cluster are asked for a model; without a cluster."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from baton.platform.cluster import model_peers
from baton.platform.cluster.model_peers import RayPeers
from baton.platform.models.lending import Lent
from baton.platform.models.listing import Listing, RemoteFile

LISTING = Listing("/far", "v1", (RemoteFile("config.json", 2),))


class Lenders:
    """The nodes of a cluster by number: all have borrowed the folder, one is its home."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, num_nodes: int, home: int) -> None:
        self._home = home
        nodes = [{"Alive": True, "NodeID": number} for number in range(num_nodes)]
        own = SimpleNamespace(get_node_id=lambda: "own")
        monkeypatch.setattr("ray.get_runtime_context", lambda: own)
        monkeypatch.setattr("ray.nodes", lambda: nodes)
        monkeypatch.setattr("ray.kill", lambda actor: None)
        monkeypatch.setattr("random.shuffle", lambda nodes: None)
        monkeypatch.setattr(model_peers, "_ask", self._ask)

    def _ask(
        self, model: str, version: str, nodes: Sequence[dict[str, Any]]
    ) -> Iterator[model_peers._NodePeer]:
        for node in nodes:
            lent = Lent(LISTING, is_home=node["NodeID"] == self._home)
            yield model_peers._NodePeer(f"node {node['NodeID']}", lent, None)


def test_nodes_are_asked_for_a_lent_folder_until_its_home_is_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    Lenders(monkeypatch, num_nodes=30, home=20)

    with RayPeers().having("/far", "", is_lent=True) as peers:
        assert [peer.name for peer in peers if peer.is_home] == ["node 20"]
    with RayPeers().having("s3://far", "v1", is_lent=False) as peers:
        assert len(peers) == model_peers.NUM_ASKED
