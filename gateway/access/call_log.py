"""What the log says of calls: all if asked for, and in any case who operated or was refused.

    baton.gateway.access.calls    every call, with `gateway.access_log`
    baton.gateway.access.audit    drains and the like, and calls without the right key

Keys are told by name, or by the beginning of their hash; of prompts and outputs there is nothing.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass

from baton.gateway.access.api_keys import Caller

calls = logging.getLogger("baton.gateway.access.calls")
audit = logging.getLogger("baton.gateway.access.audit")

REFUSED = frozenset({"401", "403", "UNAUTHENTICATED", "PERMISSION_DENIED"})
MAX_PATH = 200
"""Characters: strangers are logged as well."""


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
    """It changed something of the deployment."""


def log_call(call: EndedCall, *, has_access_log: bool) -> None:
    is_refused = call.status in REFUSED
    if not (has_access_log or is_refused or call.is_change):
        return
    caller = call.caller
    about = {
        "request_id": call.request_id,
        "trace_id": caller.call.span.context.trace_id,
        "method": call.method,
        "path": ascii(call.path[:MAX_PATH])[1:-1],  # nobody writes lines of his own into the log
        "status": call.status,
        "seconds": round(call.seconds, 6),
        "tenant": caller.tenant,
        "key": caller.key,
    }
    if is_refused or call.is_change:
        audit.info("refused" if is_refused else "operated", extra=about)
    if has_access_log:
        calls.info("call", extra=about)
