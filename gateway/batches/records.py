"""A batch as clients see it, and the internal record of its order.

validating --> in_progress --> finalizing --> completed
    |             |     '--------------'----> expired
    '--> failed   '--> cancelling ----------> cancelled
"""

from __future__ import annotations

import hashlib
import re
import secrets
from typing import Literal

import msgspec
from msgspec import UNSET, UnsetType, field

Status = Literal[
    "validating",
    "failed",
    "in_progress",
    "finalizing",
    "completed",
    "expired",
    "cancelling",
    "cancelled",
]
OVER = ("failed", "completed", "expired", "cancelled")
ID = re.compile(r"(batch_|file-)[0-9a-f]{28}")
"""Ids sort in the order of creation."""


def new_id(prefix: Literal["batch_", "file-"], now: float) -> str:
    return f"{prefix}{int(now * 1e3):012x}{secrets.token_hex(8)}"


def output_id(batch_id: str, what: str) -> str:
    """The id of a batch's output file, the same for every holder: an end written twice is one
    file."""
    digest = hashlib.sha256(f"{batch_id} {what}".encode()).hexdigest()
    return f"file-{batch_id.removeprefix('batch_')[:12]}{digest[:16]}"


class RequestCounts(msgspec.Struct, kw_only=True):
    total: int = 0
    completed: int = 0
    failed: int = 0
    expired: int | UnsetType = UNSET
    """Failed requests that had not run when the batch expired."""


class BatchFault(msgspec.Struct, kw_only=True):
    """Why a batch failed."""

    code: str
    message: str
    line: int | None = None
    """The line's number in the input, from 1."""
    param: str | None = None


class BatchFaults(msgspec.Struct, kw_only=True):
    object: Literal["list"] = "list"
    data: list[BatchFault]


class Batch(msgspec.Struct, kw_only=True):
    """Times are Unix seconds."""

    id: str
    object: Literal["batch"] = "batch"
    endpoint: str
    model: str | None = None
    errors: BatchFaults | None = None
    input_file_id: str
    completion_window: Literal["24h"] = "24h"
    status: Status = "validating"
    output_file_id: str | None = None
    """Answers, a line each, in no order of their requests."""
    error_file_id: str | None = None
    """Lines that could not be answered."""
    created_at: int
    in_progress_at: int | None = None
    expires_at: int
    finalizing_at: int | None = None
    completed_at: int | None = None
    failed_at: int | None = None
    expired_at: int | None = None
    cancelling_at: int | None = None
    cancelled_at: int | None = None
    request_counts: RequestCounts = field(default_factory=RequestCounts)
    metadata: dict[str, str] | None = None

    def become(self, status: Status, now: float) -> None:
        self.status = status
        if status != "validating":
            setattr(self, f"{status}_at", int(now))


class BatchOrder(msgspec.Struct, frozen=True, kw_only=True):
    """The batch as it was ordered; immutable."""

    owner: str
    """The owner id, as `Caller.owner`."""
    models: tuple[frozenset[str], ...] = ()
    """`Caller.models` at the time of the order: a later key of the same owner does not extend
    it."""
    batch: Batch
    """As it was when it was made."""
    output_ttl_s: float
    """How long its output is kept."""
