"""Reading a JSON body: bounded, and refused with the path of what is wrong with it."""

from __future__ import annotations

import asyncio
import re
from typing import TypeVar

import msgspec
from starlette.requests import ClientDisconnect, Request

from baton.core.errors import Cancelled, InvalidRequest, RequestTooLarge
from baton.platform.gateway.config import GatewayConfig

B = TypeVar("B", bound=msgspec.Struct)

UNKNOWN_FIELD = re.compile(r"unknown field `(?P<name>[^`]*)`")
MISSING_FIELD = re.compile(r"missing required field `(?P<name>[^`]*)`")
PATH = re.compile(r" - at (`key` in )?`(?P<path>[^`]*)`$")


class BodyTooSlow(InvalidRequest):
    """The body did not arrive within the time limit of a request."""


async def read_body(request: Request, config: GatewayConfig) -> bytes:
    """Raises RequestTooLarge as soon as that is known: at best before anything is read.

    Raises BodyTooSlow for clients that hold a connection without sending what they announced.
    """
    try:
        async with asyncio.timeout(config.request_timeout_s):
            return await _read(request, config.max_body_bytes)
    except TimeoutError as error:
        raise BodyTooSlow("the request's body did not arrive in time") from error


async def _read(request: Request, max_bytes: int) -> bytes:
    announced = request.headers.get("content-length", "")
    if announced.isdecimal() and int(announced) > max_bytes:
        raise _too_large(max_bytes)
    chunks: list[bytes] = []
    num_bytes = 0
    try:
        async for chunk in request.stream():
            num_bytes += len(chunk)
            if num_bytes > max_bytes:
                raise _too_large(max_bytes)
            chunks.append(chunk)
    except ClientDisconnect as error:
        raise Cancelled("the client went away while it sent its request") from error
    return b"".join(chunks)


def decode_body(data: bytes, kind: type[B]) -> B:
    """Raises InvalidRequest."""
    try:
        return msgspec.json.decode(data, type=kind)
    except msgspec.ValidationError as error:
        raise _invalid(str(error)) from error
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise InvalidRequest(f"the body is not valid JSON: {error}") from error


def _too_large(max_bytes: int) -> RequestTooLarge:
    return RequestTooLarge(f"the request's body is larger than {max_bytes} bytes")


def _invalid(text: str) -> InvalidRequest:
    """msgspec's message, with its path (`$.messages[0]`) as OpenAI writes it (`messages[0]`)."""
    match = PATH.search(text)
    path = match["path"].removeprefix("$").removeprefix(".") if match else ""
    reason = PATH.sub("", text)
    if unknown := UNKNOWN_FIELD.search(reason):
        field = f"{path}.{unknown['name']}".lstrip(".")
        return InvalidRequest(f"{field} is not a field Baton knows; leave it out", field=field)
    if missing := MISSING_FIELD.search(reason):
        field = f"{path}.{missing['name']}".lstrip(".")
        return InvalidRequest(f"{field} is missing", field=field)
    return InvalidRequest(f"{path or 'the body'}: {reason}", field=path or None)
