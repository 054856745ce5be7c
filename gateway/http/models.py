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
    max_model_len: int
    """Tokens of prompt and output together."""


class ModelListAnswer(msgspec.Struct, kw_only=True):
    object: str = "list"
    data: list[ModelAnswer]


class ModelsApi:
    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway

    async def list_all(self, request: Request) -> Response:
        return json_response(ModelListAnswer(data=[self._model()]))

    async def get(self, request: Request) -> Response:
        self._gateway.model.check_name(request.path_params["model_id"])
        return json_response(self._model())

    def _model(self) -> ModelAnswer:
        model = self._gateway.model
        return ModelAnswer(
            id=model.name, created=model.created, max_model_len=self._gateway.max_model_len
        )
