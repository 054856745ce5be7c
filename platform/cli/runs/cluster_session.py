"""Connects a command to an existing Ray cluster, as a driver."""

from __future__ import annotations

import importlib
import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager

from baton.core.errors import Unavailable
from baton.platform.cluster.local_cluster import joining_environment

THIS_CLUSTER = "auto"
"""RAY_ADDRESS, as `ray job submit` sets it, or the cluster that runs on this machine."""


@contextmanager
def connected(address: str) -> Iterator[None]:
    """Raises Unavailable if there is no cluster."""
    os.environ.update(joining_environment())
    import ray

    importlib.import_module("ray.serve")
    logging.getLogger("ray.serve").setLevel(logging.ERROR)  # too verbose
    try:
        ray.init(
            address=address or THIS_CLUSTER,
            namespace="serve",
            log_to_driver=False,
            logging_level=logging.ERROR,
        )
    except (ConnectionError, RuntimeError, ValueError) as error:
        raise Unavailable(
            f"no Ray cluster at {address or 'RAY_ADDRESS, or on this machine'}: {error}; give its "
            "address with --address"
        ) from None
    try:
        yield
    finally:
        ray.shutdown()
