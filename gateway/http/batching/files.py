"""/v1/files: inputs and outputs of batches."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from typing import Annotated, Final, Literal

import msgspec
from msgspec import Meta
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from baton.core.errors import InvalidRequest, NotKept, RequestTooLarge
from baton.gateway.access.api_keys import Caller
from baton.gateway.batches.files import FileObject, Files, FileWriting, NewFile
from baton.gateway.batches.service import BatchService
from baton.gateway.http.batching.forms import FormPart, form_parts
from baton.gateway.http.batching.kept_lists import page_of
from baton.gateway.http.errors import json_response
from baton.gateway.http.request_body import body_chunks
from baton.gateway.requests.gateway import Gateway

BATCH: Final = "batch"
MAX_FIELD_BYTES = 1024
"""The most bytes of a form field other than its file."""
MAX_OTHER_BYTES = 64 << 10
"""The most bytes of all form fields other than the file."""
MAX_NAME_CHARS = 512
WRITTEN_AT_ONCE = 1 << 20
DEFAULT_PAGE = MAX_PAGE = 10_000
JSON_LINES = "application/jsonl"
MIN_TTL_S, MAX_TTL_S = 3600, 30 * 86_400


class FileForm(msgspec.Struct, kw_only=True):
    """A form: `multipart/form-data`."""

    file: Annotated[str, Meta(extra_json_schema={"format": "binary"})]
    """The file, of purpose `batch`: a JSON object a line, with custom_id, method, url and body."""
    purpose: Literal["batch"]
    """What it is for."""


class FileListAnswer(msgspec.Struct, kw_only=True):
    object: Literal["list"] = "list"
    data: list[FileObject]
    first_id: str | None
    last_id: str | None
    has_more: bool


class DeletedFileAnswer(msgspec.Struct, kw_only=True):
    id: str
    object: Literal["file"] = "file"
    deleted: bool = True


class FilesApi:
    def __init__(self, gateway: Gateway, service: BatchService | None) -> None:
        self._gateway = gateway
        self._service = service

    async def create(self, request: Request) -> Response:
        files, config = self._files, self._gateway.config
        self._gateway.check_any_model(request.state.caller)
        max_bytes = config.batches.max_file_bytes
        await files.check_room(request.state.caller.owner, config.batches.max_kept_bytes)
        chunks = body_chunks(request, config, max_bytes + MAX_OTHER_BYTES)
        upload = _Upload(files, request.state.caller, max_bytes, config.batches.keep_s)
        parts = form_parts(request.headers.get("content-type", ""), chunks)
        return json_response(await upload.read(parts))

    async def list_all(self, request: Request) -> Response:
        files, owner = self._files, request.state.caller.owner
        page, purpose = (
            page_of(request, default=DEFAULT_PAGE, most=MAX_PAGE),
            request.query_params.get("purpose"),
        )
        found: list[FileObject] = []
        for file_id in page.of(await files.ids(owner)):
            try:
                info = await files.info(file_id, owner)
            except NotKept:
                continue  # just deleted
            if purpose in (None, info.purpose):
                found.append(info)
            if len(found) > page.limit:
                break
        shown = found[: page.limit]
        return json_response(
            FileListAnswer(
                data=shown,
                first_id=shown[0].id if shown else None,
                last_id=shown[-1].id if shown else None,
                has_more=len(found) > len(shown),
            )
        )

    async def get(self, request: Request) -> Response:
        owner = request.state.caller.owner
        return json_response(await self._files.info(request.path_params["file_id"], owner))

    async def delete(self, request: Request) -> Response:
        file_id = request.path_params["file_id"]
        await self._files.delete(file_id, request.state.caller.owner)
        return json_response(DeletedFileAnswer(id=file_id))

    async def content(self, request: Request) -> Response:
        files, owner = self._files, request.state.caller.owner
        info = await files.info(request.path_params["file_id"], owner)
        stack = AsyncExitStack()
        reading = await stack.enter_async_context(files.reading(info.id, owner))

        async def chunks() -> AsyncIterator[bytes]:
            async with stack:
                async for chunk in reading:
                    yield chunk

        headers = {"content-length": str(info.bytes)}
        return StreamingResponse(chunks(), headers=headers, media_type=JSON_LINES)

    @property
    def _files(self) -> Files:
        return kept_service(self._service).files


def kept_service(service: BatchService | None) -> BatchService:
    """The batch service. Raises InvalidRequest where storage is off."""
    if service is None:
        raise InvalidRequest(
            "files and batches need the gateway's storage, which is off here; the operator must "
            "set gateway.storage.max_bytes above 0, and a folder that can be written"
        )
    return service


class _Upload:
    """One form, read as it arrives: fields may come before or after the file."""

    def __init__(self, files: Files, caller: Caller, max_bytes: int, keep_s: float) -> None:
        self._files = files
        self._owner = caller.owner
        self._max_bytes = max_bytes
        self._keep_s = keep_s
        self._fields: dict[str, bytes] = {}
        self._num_bytes = 0
        self._waiting = bytearray()

    async def read(self, parts: AsyncIterator[FormPart | bytes]) -> FileObject:
        """Raises InvalidRequest, RequestTooLarge, StorageFull, StorageUnavailable."""
        new = NewFile(owner=self._owner, filename="", purpose=BATCH, ttl_s=self._keep_s)
        async with self._files.writing(new) as writing:
            name, filename = "", None
            async for part in parts:
                if isinstance(part, FormPart):
                    name = part.name
                    if name == "file":
                        filename = self._begin_file(part, filename)
                elif name == "file":
                    await self._write(writing, part)
                else:
                    self._add(name, part)
            await writing.write(bytes(self._waiting))
            if filename is None:
                raise InvalidRequest(
                    "file is missing: the form needs a part of that name", field="file"
                )
            self._check_purpose()
            writing.filename = filename
            writing.ttl_s = self._ttl_s()
        assert writing.info is not None
        return writing.info

    def _begin_file(self, part: FormPart, before: str | None) -> str:
        if before is not None:
            raise InvalidRequest("the form has several files; send one", field="file")
        if not part.filename:
            raise InvalidRequest("file needs a filename", field="file")
        return part.filename[:MAX_NAME_CHARS]

    async def _write(self, writing: FileWriting, data: bytes) -> None:
        self._num_bytes += len(data)
        if self._num_bytes > self._max_bytes:
            raise RequestTooLarge(
                f"the file is larger than {self._max_bytes} bytes; split it into several batches",
                field="file",
            )
        self._waiting += data
        if len(self._waiting) >= WRITTEN_AT_ONCE:
            data, self._waiting = bytes(self._waiting), bytearray()
            await writing.write(data)

    def _add(self, name: str, data: bytes) -> None:
        value = self._fields.get(name, b"") + data
        if len(value) > MAX_FIELD_BYTES:
            raise InvalidRequest(
                f"{name[:64]} has more than {MAX_FIELD_BYTES} bytes; shorten it", field=name
            )
        self._fields[name] = value

    def _check_purpose(self) -> None:
        purpose = self._fields.get("purpose", b"").decode(errors="replace")
        if purpose != BATCH:
            raise InvalidRequest(
                f"purpose must be {BATCH!r}: files are stored only for batches", field="purpose"
            )

    def _ttl_s(self) -> float:
        anchor = self._fields.get("expires_after[anchor]")
        seconds = self._fields.get("expires_after[seconds]")
        if anchor is None and seconds is None:
            return self._keep_s
        if anchor != b"created_at":
            raise InvalidRequest(
                "expires_after.anchor must be created_at", field="expires_after.anchor"
            )
        asked = int(seconds) if seconds is not None and seconds.isdigit() else 0
        return checked_ttl_s(asked, self._keep_s, "expires_after.seconds")


def checked_ttl_s(asked: int, keep_s: float, field: str) -> float:
    """How long a file is kept. Raises InvalidRequest."""
    if not MIN_TTL_S <= asked <= MAX_TTL_S:
        raise InvalidRequest(f"{field} must be {MIN_TTL_S} to {MAX_TTL_S}", field=field)
    return min(asked, keep_s)
