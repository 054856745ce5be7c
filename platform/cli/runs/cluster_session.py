"""Connects a command to an existing Ray cluster, as a driver."""

from __future__ import annotations

import importlib
import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager

from baton.core.errors import Unavailable
from baton.platform.cli.terminal.rays_words import in_one_line
from baton.platform.cluster.head_address import check_head
from baton.platform.cluster.local_cluster import joining_environment

THIS_CLUSTER = "auto"
"""RAY_ADDRESS, as `ray job submit` sets it, or the cluster that runs on this machine."""


@contextmanager
def connected(address: str) -> Iterator[None]:
    """Raises Unavailable if there is no cluster."""
    check_head(address)
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
        raise Unavailable(_why(address or os.environ.get("RAY_ADDRESS", ""), error)) from None
    try:
        yield
    finally:
        ray.shutdown()


def _why(address: str, error: Exception) -> str:
    if address:
        return f"no Ray cluster at {address}: {in_one_line(str(error))}"
    return (
        "no Ray cluster runs on this machine: start one with `ray start --head` (`baton serve` "
        "brings its own), or say where one is with --address or RAY_ADDRESS"
    )
