"""Names of things that cross processes. All are opaque: compared for equality, never parsed."""

from __future__ import annotations

import secrets
from typing import NewType

RequestId = NewType("RequestId", str)
"""Id of a client's request. It stays the same over retries and continuations."""

TransferId = NewType("TransferId", str)
"""One attempt to hand one prompt's KV from one replica to another."""

ReplicaId = NewType("ReplicaId", str)
"""One replica of a pool, as Ray names it. A restarted replica may reuse it; its epoch differs."""

Epoch = NewType("Epoch", str)
"""One incarnation of a process: 128 random bits in hex, drawn at start, compared only for equality.

Ports, pids and replica ids are reused; epochs are not.
"""


def new_epoch() -> Epoch:
    return Epoch(secrets.token_hex(16))


def new_request_id() -> RequestId:
    return RequestId(f"req-{secrets.token_hex(12)}")


def new_transfer_id() -> TransferId:
    return TransferId(f"kv-{secrets.token_hex(12)}")
