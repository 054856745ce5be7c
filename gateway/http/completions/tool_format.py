"""Response headers that say when tools are described as text (also logged once), and when calls
are not constrained to their schemas."""

from __future__ import annotations

import logging
from functools import cache

from starlette.requests import Request

from baton.gateway.chat.plan import ChatPlan
from baton.gateway.chat.tool_detection import GENERIC
from baton.gateway.text.served_model import ServedModel

log = logging.getLogger(__name__)

TOOL_FORMAT, TOOL_SCHEMAS = "x-baton-tool-format", "x-baton-tool-schemas"
HEADER = (TOOL_FORMAT.encode(), GENERIC.encode())
TRUSTED = (TOOL_SCHEMAS.encode(), b"trusted")


def report_format(request: Request, plan: ChatPlan, model: ServedModel) -> None:
    if plan.is_generic:
        request.state.answer_headers.append(HEADER)
        _log_once(model.name)
    if plan.trusts_schemas:
        request.state.answer_headers.append(TRUSTED)


@cache
def _log_once(model: str) -> None:
    log.info(
        "how %s writes tool calls is not known: tools are described to it in words "
        "(gateway.tool_parser)",
        model,
    )
