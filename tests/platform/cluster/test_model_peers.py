"""Which nodes of a cluster are asked for a model; without a cluster."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from baton.platform.cluster.nodes import model_peers
from baton.platform.cluster.nodes.model_peers import RayPeers
from baton.platform.models.lending import LentModel
from baton.platform.models.listing import Listing, RemoteFile

LISTING = Listing("/far", "v1", (RemoteFile("config.json", 2),))


class Lenders:
    """The nodes of a cluster by number: all have borrowed the folder, one is its home."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, num_nodes: int, home: int) -> None:
        self._home = home
        self.silent: set[int] = set()
        nodes = [{"Alive": True, "NodeID": number} for number in range(num_nodes)]
        own = SimpleNamespace(get_node_id=lambda: "own")
        monkeypatch.setattr("ray.get_runtime_context", lambda: own)
        monkeypatch.setattr("ray.nodes", lambda: nodes)
        monkeypatch.setattr("ray.kill", lambda actor: None)
        monkeypatch.setattr("random.shuffle", lambda nodes: None)
        monkeypatch.setattr(model_peers, "_ask", self._ask)

    def _ask(
        self, model: str, version: str, nodes: Sequence[dict[str, Any]]
    ) -> Iterator[model_peers._NodePeer | None]:
        for node in nodes:
            if node["NodeID"] in self.silent:
                continue
            lent = LentModel(LISTING, is_home=node["NodeID"] == self._home)
            yield model_peers._NodePeer(f"node {node['NodeID']}", lent, None)


def test_nodes_are_asked_for_a_lent_folder_until_its_home_is_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    Lenders(monkeypatch, num_nodes=30, home=20)

    with RayPeers().having("/far", "", is_lent=True) as answers:
        assert [peer.name for peer in answers.having if peer.is_home] == ["node 20"]
    with RayPeers().having("s3://far", "v1", is_lent=False) as answers:
        assert len(answers.having) == model_peers.NUM_ASKED


def test_the_home_of_a_folder_is_found_on_a_cluster_of_any_size(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    lenders = Lenders(monkeypatch, num_nodes=40, home=39)

    with RayPeers().having("/far", "", is_lent=True) as answers:
        assert answers.having[-1].is_home
        assert answers.is_complete
    lenders.silent = {39}
    with RayPeers().having("/far", "", is_lent=True) as answers:
        assert len(answers.having) == 39
        assert not answers.is_complete


def test_who_cannot_ask_at_all_has_no_complete_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_cluster() -> None:
        raise RuntimeError("the head does not answer")

    monkeypatch.setattr("ray.get_runtime_context", no_cluster)
    with RayPeers().having("/far", "", is_lent=True) as answers:
        assert not answers.having
        assert not answers.is_complete
