"""Ray with an empty Serve application: what a start of `baton serve` cannot be faster than.

python -m bench.empty_application      prints ANSWERED when the application does, then ends
"""

from __future__ import annotations

import os

from baton.platform.cluster.local_cluster import OBJECT_STORE_BYTES, ray_environment

ANSWERED = "the empty application answers"
NUM_CPUS = 2
"""One for each of its actors, which are Serve's controller and the replica."""


def main() -> None:
    os.environ.update(ray_environment())  # before Ray is imported
    import ray
    from ray import serve

    class Empty:
        def __call__(self) -> str:
            return ANSWERED

    ray.init(
        num_cpus=NUM_CPUS,
        object_store_memory=OBJECT_STORE_BYTES,
        include_dashboard=False,
        log_to_driver=False,
    )
    serve.start(proxy_location="Disabled")
    application = serve.deployment(name="Empty")(Empty).bind()
    handle = serve.run(application, name="empty", route_prefix=None)
    print(handle.remote().result(), flush=True)
    serve.shutdown()  # type: ignore[no-untyped-call]
    ray.shutdown()


if __name__ == "__main__":
    main()
