"""The adapter of worker groups beside a KubeRay, a Ray and a Serve that take turns with it."""

from __future__ import annotations

import yaml
from tests.platform.worker_groups.simulated_cluster import (
    SERVICE,
    DirectKube,
    SimulatedCluster,
    config_of,
    group,
)

from baton.core.clock import ManualClock
from baton.platform.cluster.applications.serve_document import configuration
from baton.platform.worker_groups.adapter import Adapter
from baton.platform.worker_groups.memory import EMPTY_FOR_S


class World:
    """The adapter and all others, a turn each."""

    def __init__(
        self,
        *,
        decode: int = 2,
        hosts: int = 1,
        engines: int = 1,
        is_indexing: bool = True,
        is_autoscaled: bool = False,
        keys: tuple[str, ...] = (),
    ) -> None:
        """`hosts`: pods of each replica of the decode group; `engines`: of each decode replica."""
        several = {"numOfHosts": hosts} if hosts > 1 else {}
        groups = [
            group("gateway", "gateway", 1),
            group("prefill", "prefill", 1),
            group("decode", "decode", decode, **several),
        ]
        config = config_of({"prefill": 1, "decode": decode * hosts // engines}, engines=engines)
        self.ray = SimulatedCluster(
            groups, config, is_autoscaled=is_autoscaled, is_indexing=is_indexing
        )
        self.keys = keys
        self.clock = ManualClock(100.0)
        self.restart()

    def restart(self) -> None:
        self.adapter = Adapter(DirectKube(self.ray.kube), self.ray, self.keys, self.clock)

    def turn(self, times: int = 1) -> None:
        for _ in range(times):
            self.clock.advance(self.adapter.follow() or 0.1)
            self.ray.operate()
            self.ray.serve()

    def settle(self) -> None:
        self.turn(int(EMPTY_FOR_S / 5) + 3)

    @property
    def decode(self) -> tuple[int, int]:
        """Of the RayService and the RayCluster."""
        return self.ray.service_counts["decode"], self.ray.cluster_counts["decode"]


def kept(world: World) -> int:
    told = yaml.safe_load(world.ray.kube.get("rayservices", SERVICE)["spec"]["serveConfigV2"])
    return configuration(told["applications"][0]).decode.replicas
