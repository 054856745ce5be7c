"""/v1/batches: requests in a file, answered with capacity that interactive requests leave."""

from __future__ import annotations

from contextlib import suppress
from typing import Annotated, Literal

import msgspec
from msgspec import Meta
from starlette.requests import Request
from starlette.responses import Response

from baton.core.errors import InvalidRequest, NotKept
from baton.gateway.batches.batches import Batches, NewBatch
from baton.gateway.batches.records import Batch
from baton.gateway.batches.service import BatchService
from baton.gateway.http.batching.files import BATCH, checked_ttl_s, kept_service
from baton.gateway.http.batching.kept_lists import page_of
from baton.gateway.http.batching.line_calls import BATCH_ENDPOINTS
from baton.gateway.http.errors import json_response
from baton.gateway.http.unknown_fields import read_known
from baton.gateway.requests.gateway import Gateway

DEFAULT_PAGE, MAX_PAGE = 20, 100
MAX_METADATA, MAX_KEY_CHARS, MAX_VALUE_CHARS = 16, 64, 512


class OutputExpiry(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    anchor: Literal["created_at"]
    seconds: int
    """3600 to 2592000."""


class BatchBody(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    input_file_id: str
    """A file of purpose `batch`."""
    endpoint: Annotated[str, Meta(extra_json_schema={"enum": list(BATCH_ENDPOINTS)})]
    """The endpoint of all its lines."""
    completion_window: Literal["24h"]
    """The time it may take from its creation on; what has not run by then is in the error file."""
    metadata: dict[str, str] | None = None
    """The caller's own notes: at most 16 pairs."""
    output_expires_after: OutputExpiry | None = None
    """If its files are to be kept for less than `gateway.batches.keep_s`."""


class BatchListAnswer(msgspec.Struct, kw_only=True):
    object: Literal["list"] = "list"
    data: list[Batch]
    first_id: str | None
    last_id: str | None
    has_more: bool


class BatchesApi:
    def __init__(self, gateway: Gateway, service: BatchService | None) -> None:
        self._gateway = gateway
        self._service = service

    async def create(self, request: Request) -> Response:
        service, caller = kept_service(self._service), request.state.caller
        self._gateway.check_any_model(caller)
        body = await read_known(request, self._gateway.config, BatchBody)
        _check(body)
        keep_s = self._gateway.config.batches.keep_s
        expiry = body.output_expires_after
        ttl_s = keep_s
        if expiry is not None:
            ttl_s = checked_ttl_s(expiry.seconds, keep_s, "output_expires_after.seconds")
        await _check_input(service, body.input_file_id, caller.owner)
        new = NewBatch(
            endpoint=body.endpoint,
            input_file_id=body.input_file_id,
            metadata=body.metadata,
            output_ttl_s=ttl_s,
        )
        return json_response(await service.batches.create(new, caller))

    async def list_all(self, request: Request) -> Response:
        batches, owner = self._batches, request.state.caller.owner
        page = page_of(request, default=DEFAULT_PAGE, most=MAX_PAGE)
        found: list[Batch] = []
        for batch_id in page.of(await batches.ids(owner)):
            with suppress(NotKept):  # just deleted, or expired
                found.append(await batches.get(batch_id, owner))
            if len(found) > page.limit:
                break
        shown = found[: page.limit]
        return json_response(
            BatchListAnswer(
                data=shown,
                first_id=shown[0].id if shown else None,
                last_id=shown[-1].id if shown else None,
                has_more=len(found) > len(shown),
            )
        )

    async def get(self, request: Request) -> Response:
        owner = request.state.caller.owner
        return json_response(await self._batches.get(request.path_params["batch_id"], owner))

    async def cancel(self, request: Request) -> Response:
        owner = request.state.caller.owner
        return json_response(await self._batches.cancel(request.path_params["batch_id"], owner))

    @property
    def _batches(self) -> Batches:
        return kept_service(self._service).batches


def _check(body: BatchBody) -> None:
    """Raises InvalidRequest."""
    if body.endpoint not in BATCH_ENDPOINTS:
        known = ", ".join(BATCH_ENDPOINTS)
        raise InvalidRequest(f"endpoint must be one of {known}", field="endpoint")
    pairs = body.metadata or {}
    is_long = any(
        len(key) > MAX_KEY_CHARS or len(value) > MAX_VALUE_CHARS for key, value in pairs.items()
    )
    if len(pairs) > MAX_METADATA or is_long:
        raise InvalidRequest(
            f"metadata has at most {MAX_METADATA} pairs: keys of {MAX_KEY_CHARS} characters, and "
            f"values of {MAX_VALUE_CHARS}",
            field="metadata",
        )


async def _check_input(service: BatchService, file_id: str, owner: str) -> None:
    """Raises InvalidRequest."""
    try:
        info = await service.files.info(file_id, owner)
    except NotKept as error:
        raise InvalidRequest(str(error), field="input_file_id") from error
    if info.purpose != BATCH:
        raise InvalidRequest(
            f"{file_id} is of purpose {info.purpose!r}; upload one of purpose {BATCH!r}",
            field="input_file_id",
        )
