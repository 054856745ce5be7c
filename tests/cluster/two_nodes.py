"""Two Ray nodes on one machine, in a process of their own: what is written to its stdin is done.

    up        the second node comes, the first time once gateway and registry have their place
              on the first
    down      it is killed, with everything on it
    (end)     all is taken down

Each line is answered when it is done; the first answer is the cluster's address.
"""

from __future__ import annotations

import os
import sys
import time
from typing import Any

from tests.cluster.node_script import answers

from baton.platform.cluster.local_cluster import OBJECT_STORE_BYTES, ray_environment

os.environ.update(ray_environment())

import ray  # it reads the environment when it is imported
from ray import serve
from ray.cluster_utils import Cluster

NODE: dict[str, Any] = {"num_cpus": 1, "object_store_memory": OBJECT_STORE_BYTES}


def main() -> None:
    told = answers()
    cluster = Cluster(initialize_head=True, head_node_args={**NODE, "include_dashboard": False})
    ray.init(cluster.address, namespace="serve", log_to_driver=False)
    print(cluster.address, file=told)
    second = None
    for line in sys.stdin:
        match line.strip():
            case "up":
                if second is None:
                    wait_for_the_gateway()
                second = cluster.add_node(wait=False, **NODE)  # who waits, waits for its replica
            case "down":
                assert second is not None, "it is not up"
                cluster.remove_node(second, allow_graceful=False)
        print("done", file=told)
    ray.shutdown()
    cluster.shutdown()  # type: ignore[no-untyped-call]


def wait_for_the_gateway() -> None:
    deadline = time.monotonic() + 150
    while time.monotonic() < deadline:
        application = serve.status().applications.get("baton")
        deployments = application.deployments if application else {}
        running = [
            name
            for name in ("Gateway", "Registry")
            if name in deployments and "RUNNING" in deployments[name].replica_states
        ]
        if len(running) == 2:
            return
        time.sleep(0.2)
    raise TimeoutError("the gateway and the registry are not running")


if __name__ == "__main__":
    main()
