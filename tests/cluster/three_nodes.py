"""Three Ray nodes on one machine, in a process of their own, until its stdin ends.

    three_nodes.py PORT [FOLDER]    the control store's port, which nobody else is given while
                                    it is away; with FOLDER it outlives its head, there

    down ID    the node of this id is killed, with everything on it; `head` is the first
    up node    another comes, with as many CPUs
    up head    it is started again, at the same address
    (end)      all is taken down

The first answer is the cluster's address; each line is answered when it is done.
"""

from __future__ import annotations

import os
import sys
from typing import Any

from tests.cluster.node_script import answers

from baton.platform.cluster.local_cluster import OBJECT_STORE_BYTES, ray_environment

os.environ.update(ray_environment())
if sys.argv[2:]:
    os.environ.update(RAY_gcs_storage="rocksdb", RAY_gcs_storage_path=sys.argv[2])

from ray.cluster_utils import Cluster  # it reads the environment when it is imported

NODE: dict[str, Any] = {"object_store_memory": OBJECT_STORE_BYTES}
WORKER: dict[str, Any] = {**NODE, "num_cpus": 4, "labels": {"work": "yes"}}


def main() -> None:
    told = answers()
    port = int(sys.argv[1])
    head = {**NODE, "num_cpus": 0, "include_dashboard": False, "gcs_server_port": port}
    cluster: Any = Cluster(initialize_head=True, head_node_args=head)
    nodes = [cluster.add_node(wait=False, **WORKER) for _ in range(2)]
    cluster.wait_for_nodes(timeout=150)
    print(cluster.address, file=told)
    for line in sys.stdin:
        match line.split():
            case ["up", "node"]:
                nodes.append(cluster.add_node(**WORKER))
            case ["up", "head"]:
                cluster.add_node(**head)
            case ["down", "head"]:
                cluster.remove_node(cluster.head_node, allow_graceful=False)
            case ["down", node_id]:
                [doomed] = [node for node in nodes if node.node_id == node_id]
                cluster.remove_node(doomed, allow_graceful=False)
        print("done", file=told)
    cluster.shutdown()


if __name__ == "__main__":
    main()
