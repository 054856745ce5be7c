"""GET /v1/models and /v1/models/{id}"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Literal

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from baton.core.errors import InvalidRequest
from baton.gateway.http.batching.kept_lists import limit_of
from baton.gateway.http.errors import json_response
from baton.gateway.requests.gateway import Gateway

ANTHROPICS_VERSION = "anthropic-version"
MAX_LIMIT = 1000


class ModelAnswer(msgspec.Struct, kw_only=True):
    id: str
    object: str = "model"
    created: int
    owned_by: str = "baton"
    root: str
    """The model's own name, also on an alias; of an adapter its folder, id or URL, as in vLLM."""
    parent: str | None = None
    """vLLM's: the model that an adapter adapts."""
    max_model_len: int
    """Tokens of prompt and output together."""


class ModelListAnswer(msgspec.Struct, kw_only=True):
    object: str = "list"
    data: list[ModelAnswer]


class AnthropicsModelAnswer(msgspec.Struct, kw_only=True):
    """A model in Anthropic's format, for requests with the header `anthropic-version`."""

    type: Literal["model"] = "model"
    id: str
    display_name: str
    created_at: str
    """RFC 3339."""
    lifecycle: Literal["active"] = "active"
    max_input_tokens: int
    """Less what the answer takes."""
    max_tokens: int
    """Less what the prompt takes."""


class AnthropicsModelListAnswer(msgspec.Struct, kw_only=True):
    data: list[AnthropicsModelAnswer]
    first_id: str | None
    last_id: str | None
    has_more: bool


class ModelsApi:
    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway

    async def list_all(self, request: Request) -> Response:
        names = self._gateway.usable_names(request.state.caller)
        if ANTHROPICS_VERSION not in request.headers:
            return json_response(ModelListAnswer(data=[self._model(name) for name in names]))
        shown, has_more = _page(names, request.query_params)
        return json_response(
            AnthropicsModelListAnswer(
                data=[self._anthropics_model(name) for name in shown],
                first_id=shown[0] if shown else None,
                last_id=shown[-1] if shown else None,
                has_more=has_more,
            )
        )

    async def get(self, request: Request) -> Response:
        name = request.path_params["model_id"]
        self._gateway.check_model(name, request.state.caller)
        if ANTHROPICS_VERSION in request.headers:
            return json_response(self._anthropics_model(name))
        return json_response(self._model(name))

    def _model(self, name: str) -> ModelAnswer:
        model = self._gateway.model
        return ModelAnswer(
            id=name,
            created=model.created,
            root=model.root_of(name),
            parent=model.parent_of(name),
            max_model_len=self._gateway.max_model_len,
        )

    def _anthropics_model(self, name: str) -> AnthropicsModelAnswer:
        created = datetime.fromtimestamp(self._gateway.model.created, UTC)
        return AnthropicsModelAnswer(
            id=name,
            display_name=name,
            created_at=created.isoformat().replace("+00:00", "Z"),
            max_input_tokens=self._gateway.max_model_len,
            max_tokens=self._gateway.max_model_len,
        )


def _page(names: Sequence[str], query: Mapping[str, str]) -> tuple[Sequence[str], bool]:
    """The page, and whether there are more in its direction. Raises InvalidRequest."""
    limit = limit_of(query, default=20, most=MAX_LIMIT)
    for field in ("after_id", "before_id"):
        if field in query and query[field] not in names:
            raise InvalidRequest(
                f"{field} is not the id of a model here; see GET /v1/models", field=field
            )
    if "before_id" in query:
        before = names[: names.index(query["before_id"])]
        return before[-limit:], len(before) > limit
    after = names[names.index(query["after_id"]) + 1 :] if "after_id" in query else names
    return after[:limit], len(after) > limit
