"""/v1/messages/batches: the same batches as /v1/batches, in Anthropic's format.

requests  --> a file of lines for /v1/messages, and a batch of it
results   <-- its output and error file, and the input's lines that were not run
"""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from contextlib import suppress
from datetime import UTC, datetime
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from baton.core.errors import InvalidRequest, NotKept, StorageUnavailable
from baton.gateway.batches.batches import Batches, NewBatch
from baton.gateway.batches.files import NewFile
from baton.gateway.batches.input_lines import InputLine, told_id
from baton.gateway.batches.output import OutputLine
from baton.gateway.batches.records import OVER, Batch
from baton.gateway.batches.service import BatchService
from baton.gateway.http.batching.files import BATCH, JSON_LINES, kept_service
from baton.gateway.http.batching.kept_lists import limit_of
from baton.gateway.http.errors import MESSAGES, json_response
from baton.gateway.http.unknown_fields import read_known
from baton.gateway.requests.gateway import Gateway

ENDPOINT = "/v1/messages"
CUSTOM_ID = re.compile(r"[A-Za-z0-9_-]{1,64}")
DEFAULT_PAGE, MAX_PAGE = 20, 1000
FAILED = 500
"""The status of lines in a batch whose input could not be read."""


class BatchedRequest(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    custom_id: str
    """1 to 64 letters, digits, `_` and `-`; unique in the batch."""
    params: Annotated[msgspec.Raw, Meta(description="A body of `/v1/messages`.")]


class MessageBatchBody(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    requests: list[BatchedRequest]


class MessageBatchCounts(msgspec.Struct, kw_only=True):
    """All are processing until the batch has ended."""

    processing: int = 0
    succeeded: int = 0
    errored: int = 0
    canceled: int = 0
    expired: int = 0


class MessageBatchAnswer(msgspec.Struct, kw_only=True):
    """Times are RFC 3339."""

    id: str
    type: Literal["message_batch"] = "message_batch"
    processing_status: Literal["in_progress", "canceling", "ended"]
    request_counts: MessageBatchCounts
    created_at: str
    expires_at: str
    ended_at: str | None = None
    cancel_initiated_at: str | None = None
    archived_at: None = None
    results_url: str | None = None
    """The URL of the results at this server; null until the batch has ended."""


class MessageBatchListAnswer(msgspec.Struct, kw_only=True):
    data: list[MessageBatchAnswer]
    first_id: str | None
    last_id: str | None
    has_more: bool


class DeletedMessageBatch(msgspec.Struct, kw_only=True):
    id: str
    type: Literal["message_batch_deleted"] = "message_batch_deleted"


class MessageBatchesApi:
    def __init__(self, gateway: Gateway, service: BatchService | None) -> None:
        self._gateway = gateway
        self._service = service

    async def create(self, request: Request) -> Response:
        service, config = kept_service(self._service), self._gateway.config.batches
        caller, owner = request.state.caller, request.state.caller.owner
        self._gateway.check_any_model(caller)
        body = await read_known(request, self._gateway.config, MessageBatchBody)
        _check(body.requests, config.max_lines)
        await service.files.check_room(owner, config.max_kept_bytes)
        new = NewFile(
            owner=owner, filename="message_batch.jsonl", purpose=BATCH, ttl_s=config.keep_s
        )
        async with service.files.writing(new) as writing:
            for one in body.requests:
                line = InputLine(
                    custom_id=one.custom_id,
                    method="POST",
                    url=ENDPOINT,
                    body=msgspec.Raw(msgspec.json.format(one.params, indent=-1)),
                )
                await writing.write(msgspec.json.encode(line) + b"\n")
        asked = NewBatch(
            endpoint=ENDPOINT,
            input_file_id=writing.file_id,
            metadata=None,
            output_ttl_s=config.keep_s,
            num_lines=len(body.requests),
        )
        try:
            batch = await service.batches.create(asked, caller)
        except BaseException:  # no client knows the file
            with suppress(NotKept, StorageUnavailable):
                await service.files.delete(writing.file_id, owner)
            raise
        return json_response(_shown(batch))

    async def list_all(self, request: Request) -> Response:
        batches, owner = self._batches, request.state.caller.owner
        query = request.query_params
        limit = limit_of(query, default=DEFAULT_PAGE, most=MAX_PAGE)
        ids = await batches.ids(owner)  # the oldest first
        is_before = "before_id" in query
        if is_before:
            ids = [one for one in ids if one > query["before_id"]]
        else:
            ids = [one for one in reversed(ids) if one < query.get("after_id", "~")]
        found: list[Batch] = []
        for batch_id in ids:
            with suppress(NotKept):  # it has just been deleted
                batch = await batches.get(batch_id, owner)
                if batch.endpoint == ENDPOINT:
                    found.append(batch)
            if len(found) > limit:
                break
        shown = [_shown(batch) for batch in found[:limit]]
        if is_before:
            shown.reverse()
        return json_response(
            MessageBatchListAnswer(
                data=shown,
                first_id=shown[0].id if shown else None,
                last_id=shown[-1].id if shown else None,
                has_more=len(found) > len(shown),
            )
        )

    async def get(self, request: Request) -> Response:
        return json_response(_shown(await self._find(request)))

    async def cancel(self, request: Request) -> Response:
        batch = await self._find(request)
        return json_response(
            _shown(await self._batches.cancel(batch.id, request.state.caller.owner))
        )

    async def delete(self, request: Request) -> Response:
        """Delete the batch with its results and its input."""
        service, owner = kept_service(self._service), request.state.caller.owner
        batch = await self._find(request)
        await service.batches.delete(batch.id, owner)
        for file_id in (batch.input_file_id, batch.output_file_id, batch.error_file_id):
            if file_id is not None:
                with suppress(NotKept):
                    await service.files.delete(file_id, owner)
        return json_response(DeletedMessageBatch(id=batch.id))

    async def results(self, request: Request) -> Response:
        batch = await self._find(request)
        if batch.status not in OVER:
            raise InvalidRequest(
                f"{batch.id} has no results yet; wait until its processing_status is ended"
            )
        lines = self._results(batch, request.state.caller.owner)
        return StreamingResponse(lines, media_type=JSON_LINES)

    async def _results(self, batch: Batch, owner: str) -> AsyncIterator[bytes]:
        """The result lines, without files that were deleted or have expired. Raises
        StorageUnavailable."""
        answered: set[str] = set()
        for file_id in (batch.output_file_id, batch.error_file_id):
            async for data in self._lines(file_id, owner):
                line = msgspec.json.decode(data, type=OutputLine)
                answered.add(line.custom_id)
                yield _line(line.custom_id, _result(line))
        if batch.status == "completed":
            return
        async for data in self._lines(batch.input_file_id, owner):
            custom_id = told_id(data)  # an uploaded file may have lines that are not requests
            if custom_id is not None and custom_id not in answered:
                answered.add(custom_id)
                yield _line(custom_id, _not_run(batch))

    async def _lines(self, file_id: str | None, owner: str) -> AsyncIterator[bytes]:
        if file_id is None:
            return
        rest = b""
        with suppress(NotKept):
            async with kept_service(self._service).files.reading(file_id, owner) as reading:
                async for chunk in reading:
                    *lines, rest = (rest + chunk).split(b"\n")
                    for line in lines:
                        yield line
        if rest:
            yield rest

    async def _find(self, request: Request) -> Batch:
        """Raises NotKept, StorageUnavailable; InvalidRequest where storage is off."""
        batch_id = request.path_params["batch_id"]
        batch = await self._batches.get(batch_id, request.state.caller.owner)
        if batch.endpoint != ENDPOINT:
            raise NotKept(f"{batch_id} is a batch of {batch.endpoint}; look for it in /v1/batches")
        return batch

    @property
    def _batches(self) -> Batches:
        return kept_service(self._service).batches


def _check(requests: list[BatchedRequest], max_lines: int) -> None:
    """Raises InvalidRequest."""
    if not 1 <= len(requests) <= max_lines:
        raise InvalidRequest(
            f"requests needs 1 to {max_lines} requests; got {len(requests)}", field="requests"
        )
    seen: set[str] = set()
    for index, one in enumerate(requests):
        field = f"requests[{index}].custom_id"
        if not CUSTOM_ID.fullmatch(one.custom_id):
            raise InvalidRequest(f"{field} must have 1 to 64 letters, digits, _ or -", field=field)
        if one.custom_id in seen:
            raise InvalidRequest(
                f"{field}: {one.custom_id!r} is used twice; give each request its own", field=field
            )
        seen.add(one.custom_id)
        if not bytes(one.params).startswith(b"{"):
            field = f"requests[{index}].params"
            raise InvalidRequest(
                f"{field} must be an object: the body of a request to {ENDPOINT}", field=field
            )


def _shown(batch: Batch) -> MessageBatchAnswer:
    is_over = batch.status in OVER
    ended = [batch.completed_at, batch.failed_at, batch.expired_at, batch.cancelled_at]
    status: Literal["in_progress", "canceling", "ended"] = "in_progress"
    if is_over:
        status = "ended"
    elif batch.status == "cancelling":
        status = "canceling"
    return MessageBatchAnswer(
        id=batch.id,
        processing_status=status,
        request_counts=_counts(batch),
        created_at=_time(batch.created_at),
        expires_at=_time(batch.expires_at),
        ended_at=_time(max(filter(None, ended))) if is_over else None,
        cancel_initiated_at=None if batch.cancelling_at is None else _time(batch.cancelling_at),
        results_url=f"{ENDPOINT}/batches/{batch.id}/results" if is_over else None,
    )


def _counts(batch: Batch) -> MessageBatchCounts:
    counts = batch.request_counts
    rest = counts.total - counts.completed - counts.failed
    match batch.status:
        case "completed" | "failed":
            return MessageBatchCounts(succeeded=counts.completed, errored=counts.failed + rest)
        case "expired":
            num_expired = counts.expired or 0
            return MessageBatchCounts(
                succeeded=counts.completed,
                errored=counts.failed - num_expired,
                expired=num_expired,
            )
        case "cancelled":
            return MessageBatchCounts(
                succeeded=counts.completed, errored=counts.failed, canceled=rest
            )
    return MessageBatchCounts(processing=counts.total)


def _result(line: OutputLine) -> dict[str, Any]:
    if line.response is None:
        return {"type": "expired"}
    if line.response.status_code < 300:
        return {"type": "succeeded", "message": line.response.body}
    return {"type": "errored", "error": line.response.body}


def _not_run(batch: Batch) -> dict[str, Any]:
    """The result of a request that has no answer."""
    if batch.status != "failed":
        return {"type": "canceled" if batch.status == "cancelled" else "expired"}
    faults = batch.errors.data if batch.errors is not None else []
    message = "; ".join(fault.message for fault in faults) or "the batch failed"
    return {"type": "errored", "error": MESSAGES.of_status(FAILED, message)}


def _line(custom_id: str, result: dict[str, Any]) -> bytes:
    return msgspec.json.encode({"custom_id": custom_id, "result": result}) + b"\n"


def _time(seconds: int) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat().replace("+00:00", "Z")
