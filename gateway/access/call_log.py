"""Log lines of calls: every call if configured; operators' changes and refused keys always.

    baton.gateway.access.calls    every call, with `gateway.access_log`
    baton.gateway.access.audit    drains and the like, and calls without the right key

A key appears by its name, or the beginning of its hash. Prompts and outputs are never logged.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass

from baton.gateway.access.api_keys import Caller

calls = logging.getLogger("baton.gateway.access.calls")
audit = logging.getLogger("baton.gateway.access.audit")

REFUSED = frozenset({"401", "403", "UNAUTHENTICATED", "PERMISSION_DENIED"})
MAX_PATH = 200
"""Characters of a logged path, which a caller without a key can choose."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EndedCall:
    method: str
    """GET, POST; or grpc."""
    path: str
    """The path as the client wrote it, or the method's name."""
    status: str
    seconds: float
    request_id: str
    caller: Caller
    is_change: bool = False
    """Whether the call changed the deployment."""


def log_call(call: EndedCall, *, has_access_log: bool) -> None:
    is_refused = call.status in REFUSED
    if not (has_access_log or is_refused or call.is_change):
        return
    caller = call.caller
    about = {
        "request_id": call.request_id,
        "trace_id": caller.call.span.context.trace_id,
        "method": call.method,
        "path": ascii(call.path[:MAX_PATH])[1:-1],  # a caller cannot inject lines into the log
        "status": call.status,
        "seconds": round(call.seconds, 6),
        "tenant": caller.tenant,
        "key": caller.key,
    }
    if is_refused or call.is_change:
        audit.info("refused" if is_refused else "operated", extra=about)
    if has_access_log:
        calls.info("call", extra=about)
