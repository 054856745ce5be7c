"""Copies models from other nodes over Ray's object store.

    this process --- one actor on each of some nodes ---> has this version? which files? bytes 4 MiB
                 <--- objects, a few at a time, each let go when it is written down ---

The actors belong to this process: they end when it has its files, or when it ends.
"""

from __future__ import annotations

import logging
import random
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import msgspec
import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from baton.platform.config.deployment import DeploymentConfig
from baton.platform.models.lending import Lender, LentModel
from baton.platform.models.listing import RemoteFile
from baton.platform.models.origins.origin import CHUNK_BYTES, OriginUnreachable
from baton.platform.models.peers import Answers, NoPeers, Peers

log = logging.getLogger(__name__)

NUM_ASKED = 8
"""Nodes asked at once; further ones if none of them has the model."""
MOST_ASKED = 32
"""The most nodes asked for a model that can also be downloaded. For a folder of one node, all are
asked."""
PATIENCE_S = 30.0
"""Seconds for an actor to start, or to answer."""
NUM_AHEAD = 2
"""Chunks of a file in flight. A node thus has 32 MiB in flight, which fits the smallest object
store."""


def peers_of(config: DeploymentConfig) -> Peers:
    """The other nodes of this process's cluster, if there may be some."""
    return RayPeers() if config.ray.address and config.ray.lend_models else NoPeers()


class RayPeers:
    def having(self, model: str, version: str, *, is_lent: bool) -> AbstractContextManager[Answers]:
        return _having(model, version, is_lent)


@contextmanager
def _having(model: str, version: str, is_lent: bool) -> Iterator[Answers]:
    found: list[_NodePeer] = []
    is_complete = False
    try:
        found, is_complete = _find(model, version, is_lent)
    except Exception as error:  # whatever Ray raises
        log.warning("other nodes cannot be asked for %s: %s", model, _first_line(error))
    try:
        yield Answers(found, is_complete)
    finally:
        for peer in found:
            peer.let_go()


def _find(model: str, version: str, is_lent: bool) -> tuple[list[_NodePeer], bool]:
    """Peers that have the model, from the first group of nodes with any; for a lent folder, its
    owner and those asked before. And whether all answered."""
    found: list[_NodePeer] = []
    num_silent = 0
    nodes = _other_nodes()
    random.shuffle(nodes)
    if not is_lent:
        nodes = nodes[:MOST_ASKED]
    while nodes:
        asked, nodes = nodes[:NUM_ASKED], nodes[NUM_ASKED:]
        answers = list(_ask(model, version, asked))
        found += filter(None, answers)
        num_silent += len(asked) - len(answers)
        if any(one.is_home for one in found) if is_lent else found:
            break
    if found:
        log.info("%s: has %s, or fetches it", ", ".join(one.name for one in found), model)
    return found, num_silent == 0


def _other_nodes() -> list[dict[str, Any]]:
    own = ray.get_runtime_context().get_node_id()
    nodes: list[dict[str, Any]] = ray.nodes()  # type: ignore[no-untyped-call]
    return [node for node in nodes if node["Alive"] and node["NodeID"] != own]


def _ask(model: str, version: str, nodes: Sequence[dict[str, Any]]) -> Iterator[_NodePeer | None]:
    """One peer per node that answers; None if it has nothing of the model."""
    lender: Any = ray.remote(Lender)
    actors = [
        lender.options(
            num_cpus=0,
            max_concurrency=NUM_ASKED,
            scheduling_strategy=NodeAffinitySchedulingStrategy(node["NodeID"], soft=False),
        ).remote(model, version)
        for node in nodes
    ]
    answers = [actor.lent.remote() for actor in actors]
    ray.wait(answers, num_returns=len(answers), timeout=PATIENCE_S)
    for node, actor, answer in zip(nodes, actors, answers, strict=True):
        name = f"node {node['NodeManagerAddress']}"
        try:
            lent = ray.get(answer, timeout=0)
        except Exception as error:  # Ray's error, or one raised there
            log.warning("%s does not say whether it has %s: %s", name, model, _first_line(error))
            ray.kill(actor)
            continue
        if lent:
            yield _NodePeer(name, msgspec.json.decode(lent, type=LentModel), actor)
        else:
            ray.kill(actor)
            yield None


class _NodePeer:
    def __init__(self, name: str, lent: LentModel, actor: Any) -> None:
        self.name = name
        self.listing = lent.listing
        self.is_home = lent.is_home
        self._actor = actor

    def has(self, file: RemoteFile) -> bool:
        return bool(self._get(self._actor.has.remote(file.name)))

    def described(self, file: RemoteFile) -> RemoteFile:
        digest = self._get(self._actor.digest.remote(file.name), patience_s=None)
        return msgspec.structs.replace(file, digest=digest)

    def read(self, file: RemoteFile, start: int) -> Iterator[bytes]:
        starts = iter(range(start, file.size, CHUNK_BYTES))
        coming: deque[Any] = deque()
        while True:
            while len(coming) < NUM_AHEAD and (at := next(starts, None)) is not None:
                coming.append(self._actor.read.remote(file.name, at, CHUNK_BYTES))
            if not coming:
                return
            yield self._get(coming.popleft())

    def let_go(self) -> None:
        ray.kill(self._actor)

    def _get(self, answer: Any, patience_s: float | None = PATIENCE_S) -> Any:
        try:
            return ray.get(answer, timeout=patience_s)
        except Exception as error:  # any error there, or on the way
            raise OriginUnreachable(f"{self.name}: {_first_line(error)}") from error


def _first_line(error: Exception) -> str:
    return next(iter(str(error).splitlines()), "") or repr(error)
