"""How torch.distributed joins two processes started at different times; there is no world.

    P: listen --(Meet: port)--> D: connect        a store between the two, its keys hold both epochs
    P: rank 0   <------------>  D: rank 1         each blocks until the other joins, or gives up

Gloo's connections go over the addresses by which the two already talk.
"""

from __future__ import annotations

import os
import socket
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch
import torch.distributed

from baton.kv_transfer.transport.collective.staging import D_RANK, P_RANK, PointToPoint

c10d: Any = torch.distributed  # whose stubs know little of what is used here

PATIENCE_S = 10.0
"""Seconds for the other side to join, and for P to send what it announced."""
_UNLIMITED = timedelta(days=1)


@dataclass(frozen=True, slots=True, kw_only=True)
class PairAddress:
    """Where and by which backend two processes form a pair."""

    backend: str
    """gloo or nccl"""
    key: str
    """Drawn by D; the same two may become a pair again."""
    host: str
    """P's, as D reaches it."""
    port: int


@dataclass(frozen=True, slots=True)
class Group:
    ranks: PointToPoint
    store: Any
    """Kept as long as the group: NCCL looks into it."""


def join_as_sender(joint: PairAddress, listener: socket.socket) -> Group:
    """Blocks until D has joined too. Raises RuntimeError."""
    patience = timedelta(seconds=PATIENCE_S)
    store = c10d.TCPStore(
        joint.host, joint.port, None, True, patience, False, master_listen_fd=listener.detach()
    )
    return Group(_form(joint, store, P_RANK, joint.host), store)


def join_as_receiver(joint: PairAddress) -> Group:
    """Blocks until P has joined too. Raises RuntimeError or OSError."""
    patience = timedelta(seconds=PATIENCE_S)
    # A store would go on trying for twice its time, where nobody listens any more.
    with socket.create_connection((joint.host, joint.port), PATIENCE_S) as connection:
        own_host = str(connection.getsockname()[0])
    store = c10d.TCPStore(joint.host, joint.port, None, False, patience, False)
    return Group(_form(joint, store, D_RANK, own_host), store)


def _form(joint: PairAddress, store: Any, rank: int, own_host: str) -> PointToPoint:
    # A client of its own: a call that blocks in one would block its other users.
    shared = c10d.PrefixStore(joint.key, store.clone())
    if joint.backend == "nccl":
        return _form_nccl(shared, rank)
    options = c10d.ProcessGroupGloo._Options()
    options._timeout = timedelta(seconds=PATIENCE_S)
    options._threads = 1  # they serve collectives only
    options._devices = [c10d.ProcessGroupGloo.create_device(hostname=own_host)]
    group = c10d.ProcessGroupGloo(shared, rank, 2, options)
    if rank == P_RANK:
        group.set_timeout(_UNLIMITED)  # D may never be told to receive, or be told late
    ranks: PointToPoint = group
    return ranks


def _form_nccl(store: Any, rank: int) -> PointToPoint:
    # Else a peer that died takes this process along, after the timeout; 2: abort the group only.
    os.environ.setdefault("TORCH_NCCL_ASYNC_ERROR_HANDLING", "2")
    options = c10d.ProcessGroupNCCL.Options()
    options._timeout = timedelta(seconds=PATIENCE_S)
    group = c10d.ProcessGroupNCCL(store, rank, 2, options)
    # Both sides meet here, and not in the first send, which P posts before D knows of it.
    group.eager_connect_single_device(torch.device("cuda", torch.cuda.current_device()))
    ranks: PointToPoint = group
    return ranks
