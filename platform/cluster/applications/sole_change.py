"""One change of a cluster's applications at a time, whoever makes it and wherever.

The turn is an actor's name, which Ray gives to one only and takes back with the driver that had it:
whoever dies in the middle keeps nobody else out. The actor itself does nothing.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import ray
from ray.exceptions import ActorAlreadyExistsError

from baton.core.errors import Unavailable

TURN, NAMESPACE = "change of applications", "baton"
POLL_S = 0.1
LIMIT_S = 60.0
"""A turn is as long as Serve takes to answer twice."""


@contextmanager
def sole_change() -> Iterator[None]:
    """A lock to be held from reading what is deployed until what follows from it is sent.

    Raises Unavailable where others do not come to an end.
    """

    class Turn:
        """Defined here it goes to the worker whole: nodes may have another Baton, or none."""

    ask: Any = ray.remote(num_cpus=0, max_restarts=0)(Turn).options(name=TURN, namespace=NAMESPACE)
    deadline = time.monotonic() + LIMIT_S
    while True:
        try:
            turn = ask.remote()
            break
        except ActorAlreadyExistsError:
            if time.monotonic() > deadline:
                raise Unavailable(
                    f"others have changed applications of this cluster for {LIMIT_S:g} s; try "
                    "again when their `baton deploy`, `scale` or `undeploy` has ended"
                ) from None
            time.sleep(POLL_S)
    try:
        yield
    finally:
        ray.kill(turn)
