"""A head with its dashboard and a node for each worker group of a chart, until stdin ends.

    chart_nodes.py LABELS...    of each group, as JSON

The line that is told is the dashboard's address, where `serve deploy` is heard.
"""

from __future__ import annotations

import json
import os
import sys
from typing import Any

from tests.cluster.node_script import answers

from baton.platform.cluster.local_cluster import OBJECT_STORE_BYTES, ray_environment

os.environ.update(ray_environment())

from ray.cluster_utils import Cluster  # it reads the environment when it is imported

NODE: dict[str, Any] = {"object_store_memory": OBJECT_STORE_BYTES}


def main() -> None:
    told = answers()
    head = {**NODE, "num_cpus": 0, "include_dashboard": True, "dashboard_port": 0}
    cluster: Any = Cluster(initialize_head=True, head_node_args=head)
    for labels in sys.argv[1:]:
        cluster.add_node(wait=False, num_cpus=4, labels=json.loads(labels), **NODE)
    cluster.wait_for_nodes(timeout=150)
    print(f"http://{cluster.head_node.webui_url}", file=told)
    sys.stdin.read()
    cluster.shutdown()


if __name__ == "__main__":
    main()
