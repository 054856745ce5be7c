"""How the Python interpreter behaves in a process that serves, once it is up.

It changes no answer, and concerns the whole process: so it is for who owns one
(`platform/cluster/deploy.py`), never for a library.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


def spare_what_stays() -> None:
    """Let the garbage collector pass over what is there by now: modules, the model, the server.

    A look through all of it stops every thread for a tenth of a second, and frees nothing.
    """
    gc.collect()
    gc.freeze()


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
