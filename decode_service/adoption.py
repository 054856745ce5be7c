"""Adopts a sealed lease: its blocks become a request's, which joins the running batch."""

from __future__ import annotations

from baton.core.ids import TransferId
from baton.engine.engine import Engine
from baton.engine.request.request import Request
from baton.kv_transfer.receiving.receiver import Receiver


def adopt(engine: Engine, receiver: Receiver, request: Request, transfer_id: TransferId) -> None:
    """On the engine's thread, with no step between. Whatever is raised, no block stays held."""
    lease = receiver.adopt(transfer_id)
    try:
        engine.adopt(request, lease)
    except BaseException:
        engine.pool.release(lease)
        raise
