"""Times Ray with an empty Serve application: a lower bound of `baton serve`'s start.

    python -m bench.serving.empty_application [ADDRESS]

Prints ANSWERED when the application answers, then ends. With the address of a running cluster it
starts there, and stays until standard input ends: this shows what any Serve actor costs.
"""

from __future__ import annotations

import os
import sys

from baton.platform.cluster.local_cluster import (
    OBJECT_STORE_BYTES,
    joining_environment,
    ray_environment,
)
from bench.harness.command_line import benchmark_parser

ANSWERED = "the empty application answers"
NUM_CPUS = 2
"""A CPU for each actor: Serve's controller and the replica."""
NAME = "empty"


def main(address: str | None) -> None:
    os.environ.update(joining_environment() if address else ray_environment())  # before its import
    import ray
    from ray import serve

    class Empty:
        def __call__(self) -> str:
            return ANSWERED

    if address:
        ray.init(address=address, log_to_driver=False)
    else:
        ray.init(
            num_cpus=NUM_CPUS,
            object_store_memory=OBJECT_STORE_BYTES,
            include_dashboard=False,
            log_to_driver=False,
        )
    serve.start(proxy_location="Disabled")
    deployment = serve.deployment(name="Empty", ray_actor_options={"num_cpus": 0 if address else 1})
    handle = serve.run(deployment(Empty).bind(), name=NAME, route_prefix=None)
    print(handle.remote().result(), flush=True)
    if address:
        sys.stdin.read()
        serve.delete(NAME)
    else:
        serve.shutdown()  # type: ignore[no-untyped-call]
    ray.shutdown()


if __name__ == "__main__":
    parser = benchmark_parser(__doc__)
    parser.add_argument("address", nargs="?", help="of a running cluster")
    main(parser.parse_args().address)
