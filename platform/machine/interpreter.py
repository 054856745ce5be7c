"""Tunes Python's garbage collector in serving processes.

It affects the whole process, so only programs use it (`platform/cluster/deploy.py`), never
libraries.
"""

from __future__ import annotations

import gc
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import TypeAlias

Wait: TypeAlias = Callable[[], Awaitable[object]]


def freeze_present_objects() -> None:
    """Freeze the present objects (modules, model, server) for the garbage collector: a full
    collection would stop every thread for a tenth of a second and free nothing.
    """
    gc.collect()
    gc.freeze()


async def freeze_startup_objects(until_begun: Wait, until_over: Wait) -> None:
    """Disable the collector in between, and freeze the objects made, nearly all of which stay, such
    as a gateway's links to replicas."""
    await until_begun()
    with without_garbage_collection():
        await until_over()


@contextmanager
def without_garbage_collection() -> Iterator[None]:
    """Context for imports, with the garbage collector off. Imports make a million objects, nearly
    all of which stay; collections would take a tenth of the time and free little, so these objects
    are frozen afterwards.
    """
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()
