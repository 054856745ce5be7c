"""Stored responses: GET and DELETE /v1/responses/{response_id}, and its input items."""

from __future__ import annotations

from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from baton.core.errors import InvalidRequest
from baton.gateway.http.errors import json_response
from baton.gateway.http.responses.answer import DeletedAnswer, ItemListAnswer
from baton.gateway.http.responses.background import BackgroundResponses
from baton.gateway.http.responses.input import InputItem
from baton.gateway.http.responses.kept import KeptResponse

FIELD = "response_id"
FALSE_WORDS = ("", "0", "false")
DEFAULT_LIMIT, MAX_LIMIT = 20, 100


class KeptResponsesApi:
    def __init__(self, background: BackgroundResponses) -> None:
        self._responses = background

    async def get(self, request: Request) -> Response:
        if request.query_params.get("stream", "").lower() not in FALSE_WORDS:
            raise InvalidRequest(
                "stream: a stored response cannot be streamed again; leave it out, or create the "
                "response with stream and resumable",
                field="stream",
            )
        return _answer(await self._find(request))

    async def delete(self, request: Request) -> Response:
        response_id: str = request.path_params[FIELD]
        await self._responses.delete(response_id, request.state.caller.owner, FIELD)
        return json_response(DeletedAnswer(id=response_id))

    async def cancel(self, request: Request) -> Response:
        owner = request.state.caller.owner
        return _answer(await self._responses.cancel(request.path_params[FIELD], owner, FIELD))

    async def input_items(self, request: Request) -> Response:
        kept = await self._find(request)
        return json_response(_page(kept.input_items(), dict(request.query_params)))

    async def _find(self, request: Request) -> KeptResponse:
        """Raises NotKept, StorageUnavailable."""
        caller = request.state.caller
        return await self._responses.find(request.path_params[FIELD], caller.owner, FIELD)


def _answer(kept: KeptResponse) -> Response:
    return Response(bytes(kept.answer), media_type="application/json")


def _page(items: list[InputItem], query: dict[str, Any]) -> ItemListAnswer:
    """Raises InvalidRequest."""
    order = query.get("order", "desc")
    if order not in ("asc", "desc"):
        raise InvalidRequest(f"order is {order!r}; known are asc and desc", field="order")
    limit = str(query.get("limit", DEFAULT_LIMIT))
    if not (limit.isascii() and limit.isdecimal() and 1 <= int(limit[:4]) <= MAX_LIMIT):
        raise InvalidRequest(f"limit must be from 1 to {MAX_LIMIT}", field="limit")
    if order == "desc":
        items = items[::-1]
    if (after := query.get("after")) is not None:
        places = [place for place, item in enumerate(items) if item["id"] == after]
        if not places:
            raise InvalidRequest("after is not the id of one of these items", field="after")
        items = items[places[0] + 1 :]
    page = items[: int(limit)]
    return ItemListAnswer(
        data=page,
        first_id=page[0]["id"] if page else None,
        last_id=page[-1]["id"] if page else None,
        has_more=len(items) > len(page),
    )
