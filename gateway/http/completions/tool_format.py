"""Tells, once in the log and in each answer's header, that tools are offered in words."""

from __future__ import annotations

import logging
from functools import cache

from starlette.requests import Request

from baton.gateway.chat.plan import ChatPlan
from baton.gateway.chat.tool_detection import GENERIC
from baton.gateway.text.served_model import ServedModel

log = logging.getLogger(__name__)

TOOL_FORMAT = "x-baton-tool-format"
HEADER = (TOOL_FORMAT.encode(), GENERIC.encode())


def tell_format(request: Request, plan: ChatPlan, model: ServedModel) -> None:
    if plan.is_generic:
        request.state.answer_headers.append(HEADER)
        _log_once(model.name)


@cache
def _log_once(model: str) -> None:
    log.info(
        "how %s writes tool calls is not known: tools are described to it in words "
        "(gateway.tool_parser)",
        model,
    )
