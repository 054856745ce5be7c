"""A cluster-wide lock for changes of applications.

The lock is an actor's name, which is unique in Ray and freed when its driver ends, so that a
crashed holder does not block others. The actor itself does nothing.
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
"""The most seconds to wait for the lock, which is held while Serve answers twice."""


@contextmanager
def sole_change() -> Iterator[None]:
    """Hold the lock from reading the deployed documents until sending the change. Raises
    Unavailable if others hold it too long.
    """

    class Turn:
        """Defined locally, so that Ray pickles it by value: nodes may have another Baton, or
        none."""

    ask: Any = ray.remote(num_cpus=0, max_restarts=0)(Turn).options(name=TURN, namespace=NAMESPACE)
    deadline = time.monotonic() + LIMIT_S
    while True:
        try:
            turn = ask.remote()
            break
        except ActorAlreadyExistsError:
            if time.monotonic() > deadline:
                raise Unavailable(
                    "another `baton deploy`, `scale` or `undeploy` has been running on this "
                    f"cluster for {LIMIT_S:g} s; try again when it has ended"
                ) from None
            time.sleep(POLL_S)
    try:
        yield
    finally:
        ray.kill(turn)
