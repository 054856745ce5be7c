"""GET /v1/models and /v1/models/{id}"""

from __future__ import annotations

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from baton.gateway.http.errors import json_response
from baton.gateway.requests.gateway import Gateway


class ModelAnswer(msgspec.Struct, kw_only=True):
    id: str
    object: str = "model"
    created: int
    owned_by: str = "baton"
    root: str
    """What the model calls itself, of whichever of its names this is."""
    max_model_len: int
    """Tokens of prompt and output together."""


class ModelListAnswer(msgspec.Struct, kw_only=True):
    object: str = "list"
    data: list[ModelAnswer]


class ModelsApi:
    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway

    async def list_all(self, request: Request) -> Response:
        return json_response(
            ModelListAnswer(data=[self._model(name) for name in self._gateway.model.names])
        )

    async def get(self, request: Request) -> Response:
        name = request.path_params["model_id"]
        self._gateway.model.check_name(name)
        return json_response(self._model(name))

    def _model(self, name: str) -> ModelAnswer:
        model = self._gateway.model
        return ModelAnswer(
            id=name,
            created=model.created,
            root=model.name,
            max_model_len=self._gateway.max_model_len,
        )
