"""Two Ray nodes with a model cache each, in a process of their own: lending_nodes.py URL CACHES.

The first node fetches the model of the URL; then the web server goes (a line is told, and one is
awaited); then the second node wants it. What each has found is told as JSON.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path

from tests.cluster.node_script import answers

from baton.platform.cluster.local_cluster import OBJECT_STORE_BYTES, ray_environment

os.environ.update(ray_environment())

import ray  # it reads the environment when it is imported
from ray.cluster_utils import Cluster
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy


@ray.remote(num_cpus=0)
def find(url: str) -> dict[str, object]:
    from baton.platform.cluster.nodes.model_peers import RayPeers
    from baton.platform.models.digest import digest_of
    from baton.platform.models.model_folder import find_model

    began = time.monotonic()
    folder = find_model(url, peers=RayPeers())
    seconds = time.monotonic() - began
    digests = {path.name: digest_of(path) for path in folder.iterdir()}
    return {"folder": str(folder), "digests": digests, "seconds": seconds}


def main() -> None:
    told = answers()
    url, caches = sys.argv[1], Path(sys.argv[2])
    cluster = Cluster()
    for name in ("a", "b"):
        cluster.add_node(
            wait=False,
            num_cpus=1,
            object_store_memory=OBJECT_STORE_BYTES,
            include_dashboard=False,
            env_vars={"BATON_MODEL_CACHE": str(caches / name)},
        )
    cluster.wait_for_nodes(timeout=150)
    ray.init(cluster.address, log_to_driver=False)
    for node in ray.nodes():  # type: ignore[no-untyped-call]
        there = NodeAffinitySchedulingStrategy(node["NodeID"], soft=False)
        found = ray.get(find.options(scheduling_strategy=there).remote(url))
        print(json.dumps(found), file=told)
        sys.stdin.readline()
    ray.shutdown()
    cluster.shutdown()  # type: ignore[no-untyped-call]


if __name__ == "__main__":
    main()
