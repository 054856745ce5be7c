"""Three Ray nodes on one machine, in a process of their own, until its stdin ends.

    down ID    the node of this id is killed, with everything on it
    (end)      all is taken down

The first line that is told is the cluster's address and the ids of the two nodes that have CPUs;
each line is answered when it is done.
"""

from __future__ import annotations

import os
import sys
from typing import Any

from baton.platform.cluster.local_cluster import OBJECT_STORE_BYTES, ray_environment

os.environ.update(ray_environment())

from ray.cluster_utils import Cluster  # it reads the environment when it is imported

NODE: dict[str, Any] = {"object_store_memory": OBJECT_STORE_BYTES}


def main() -> None:
    head = {**NODE, "num_cpus": 0, "include_dashboard": False}
    cluster = Cluster(initialize_head=True, head_node_args=head)
    nodes = [cluster.add_node(num_cpus=4, **NODE) for _ in range(2)]
    print(cluster.address, *(node.node_id for node in nodes), flush=True)
    for line in sys.stdin:
        [doomed] = [node for node in nodes if node.node_id == line.split()[1]]
        cluster.remove_node(doomed, allow_graceful=False)
        print("done", flush=True)
    cluster.shutdown()  # type: ignore[no-untyped-call]


if __name__ == "__main__":
    main()
