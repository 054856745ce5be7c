"""How the Python interpreter behaves in a process that serves, once it is up.

It changes no answer, and concerns the whole process: so it is for who owns one
(`platform/cluster/deploy.py`), never for a library.
"""

from __future__ import annotations

import gc
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import TypeAlias

Wait: TypeAlias = Callable[[], Awaitable[object]]


def spare_what_stays() -> None:
    """Let the garbage collector pass over what is there by now: modules, the model, the server.

    A look through all of it stops every thread for a tenth of a second, and frees nothing.
    """
    gc.collect()
    gc.freeze()


async def spare_what_is_made(until_begun: Wait, until_over: Wait) -> None:
    """Let the collector rest in between, and pass over what was made: nearly all of it is to stay,
    as are a gateway's links to its replicas."""
    await until_begun()
    with collector_at_rest():
        await until_over()


@contextmanager
def collector_at_rest() -> Iterator[None]:
    """Imports run here with the garbage collector off: they make a million objects, nearly all of
    which stay.

    A tenth of their time would be looks through them, as would be the first looks afterwards, which
    free nothing to speak of: so it passes over them from now on.
    """
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()
