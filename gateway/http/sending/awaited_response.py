"""A slow answer that is cancelled when its client disconnects."""

from __future__ import annotations

from collections.abc import Coroutine
from typing import Any

import msgspec
from starlette.types import Receive, Scope, Send

from baton.core.errors import Cancelled
from baton.gateway.http.errors import json_response
from baton.gateway.http.sending.disconnect import while_connected


class AwaitedResponse:
    """An ASGI response that is still to be computed, while its client waits."""

    def __init__(self, answer: Coroutine[Any, Any, msgspec.Struct]) -> None:
        self._answer = answer

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            answer = await while_connected(receive, self._answer)
        except Cancelled:
            return  # the client is gone
        await json_response(answer)(scope, receive, send)
