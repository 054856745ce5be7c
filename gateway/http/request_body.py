"""Reads a JSON body, with limits; errors name the path of the fault."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Callable
from typing import Any, TypeVar

import msgspec
from msgspec import inspect
from starlette.requests import ClientDisconnect, Request

from baton.core.errors import Cancelled, InvalidRequest, RequestTooLarge, RequestTooSlow
from baton.gateway.access.config import GatewayConfig

B = TypeVar("B", bound=msgspec.Struct)

UNKNOWN_FIELD = re.compile(r"unknown field `(?P<name>[^`]*)`")
MISSING_FIELD = re.compile(r"missing required field `(?P<name>[^`]*)`")
PATH = re.compile(r" - at (?P<key>`key` in )?`(?P<path>[^`]*)`$")
WRONG_WORD = "Invalid enum value"
STEP = re.compile(r"[^.\[\]]+")


class UnknownField(InvalidRequest):
    """The object at `path` has no field `name`."""

    def __init__(self, path: str, name: str) -> None:
        field = f"{path}.{name}".lstrip(".")
        super().__init__(f"{field} is not a field Baton knows; leave it out", field=field)
        self.path = path
        self.name = name


async def read_body(request: Request, config: GatewayConfig) -> bytes:
    """The whole body. Raises RequestTooLarge as soon as that is known, at best before reading;
    RequestTooSlow below the least rate.
    """
    began = asyncio.get_running_loop().time()
    try:
        async with asyncio.timeout_at(began + config.body_limit_s(0)) as limit:

            def on_progress(num_bytes: int) -> None:
                limit.reschedule(began + config.body_limit_s(num_bytes))

            return await _read(request, config.max_body_bytes, on_progress)
    except TimeoutError as error:
        raise _too_slow(config) from error


async def body_chunks(
    request: Request, config: GatewayConfig, max_bytes: int
) -> AsyncIterator[bytes]:
    """The body in chunks, if it may be too large to hold. Raises RequestTooLarge, RequestTooSlow,
    Cancelled."""
    _check_announced(request, max_bytes)
    began, num_bytes = asyncio.get_running_loop().time(), 0
    chunks = request.stream()
    while True:
        try:
            async with asyncio.timeout_at(began + config.body_limit_s(num_bytes)):
                chunk = await anext(chunks, None)
        except TimeoutError as error:
            raise _too_slow(config) from error
        except ClientDisconnect as error:
            raise Cancelled("the client went away while it sent its request") from error
        if chunk is None:
            return
        num_bytes += len(chunk)
        if num_bytes > max_bytes:
            raise _too_large(max_bytes)
        yield chunk


async def _read(request: Request, max_bytes: int, on_progress: Callable[[int], None]) -> bytes:
    _check_announced(request, max_bytes)
    chunks: list[bytes] = []
    num_bytes = 0
    try:
        async for chunk in request.stream():
            num_bytes += len(chunk)
            if num_bytes > max_bytes:
                raise _too_large(max_bytes)
            chunks.append(chunk)
            on_progress(num_bytes)
    except ClientDisconnect as error:
        raise Cancelled("the client went away while it sent its request") from error
    return b"".join(chunks)


def decode_body(data: bytes, kind: type[B]) -> B:
    """Raises InvalidRequest."""
    decoded: B = decode_json(data, kind)
    return decoded


def decode_json(data: bytes, kind: Any) -> Any:
    """Raises InvalidRequest."""
    try:
        return msgspec.json.decode(data, type=kind)
    except msgspec.ValidationError as error:
        raise _invalid(str(error), kind) from error
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise InvalidRequest(f"the body is not valid JSON: {error}") from error


def _check_announced(request: Request, max_bytes: int) -> None:
    """Raises RequestTooLarge."""
    announced = request.headers.get("content-length", "")
    if announced.isdecimal() and int(announced) > max_bytes:
        raise _too_large(max_bytes)


def _too_slow(config: GatewayConfig) -> RequestTooSlow:
    return RequestTooSlow(
        f"the request's body did not arrive in time: it has {config.body_timeout_s:g} s, and "
        f"a second more for each {config.min_body_bytes_per_s} bytes that have come"
    )


def _too_large(max_bytes: int) -> RequestTooLarge:
    return RequestTooLarge(f"the request's body is larger than {max_bytes} bytes")


def _invalid(text: str, kind: Any) -> InvalidRequest:
    """msgspec's message, with its path (`$.messages[0]`) as OpenAI writes it (`messages[0]`)."""
    match = PATH.search(text)
    path = match["path"].removeprefix("$").removeprefix(".") if match else ""
    reason = PATH.sub("", text)
    if unknown := UNKNOWN_FIELD.search(reason):
        return UnknownField(path, unknown["name"])
    if missing := MISSING_FIELD.search(reason):
        field = f"{path}.{missing['name']}".lstrip(".")
        return InvalidRequest(f"{field} is missing", field=field)
    where = path or "the body"
    if match and match["key"]:
        where = f"a key of {where}"
    if reason.startswith(WRONG_WORD) and (words := _words(kind, path)):
        reason += f"; known are {', '.join(words)}"
    return InvalidRequest(f"{where}: {reason}", field=path or None)


def _words(kind: Any, path: str) -> list[str]:
    """The words that there are for the value at `path`, of which msgspec names none."""
    types = _alternatives(inspect.type_info(kind))
    for step in STEP.findall(path):
        types = [found for one in types for found in _alternatives(_within(one, step))]
    return [
        str(word) for one in types if isinstance(one, inspect.LiteralType) for word in one.values
    ]


def _alternatives(one: inspect.Type | None) -> list[inspect.Type]:
    if isinstance(one, inspect.UnionType):
        return [found for each in one.types for found in _alternatives(each)]
    if isinstance(one, inspect.Metadata):
        return _alternatives(one.type)
    return [] if one is None else [one]


def _within(one: inspect.Type, step: str) -> inspect.Type | None:
    if isinstance(one, inspect.StructType):
        return next((field.type for field in one.fields if field.encode_name == step), None)
    return one.item_type if isinstance(one, inspect.CollectionType) else None
