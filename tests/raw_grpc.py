"""Calls of gRPC that no client of gRPC would make: as bytes, with any path."""

from __future__ import annotations

import asyncio
from struct import pack

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
HEADERS, SETTINGS = 1, 4
END_HEADERS = 4


async def answer_to_path(target: str, path: bytes) -> bytes:
    """What the server says to a call of `path`, until a header names its status."""
    host, _, port = target.rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    fields = {
        b":method": b"POST",
        b":scheme": b"http",
        b":path": path,
        b":authority": b"localhost",
        b"te": b"trailers",
        b"content-type": b"application/grpc",
    }
    headers = b"".join(map(_literal, fields.keys(), fields.values()))
    writer.write(PREFACE + _frame(SETTINGS, 0, 0, b"") + _frame(HEADERS, END_HEADERS, 1, headers))
    answer = b""
    while b"grpc-message" not in answer and (more := await reader.read(4096)):
        answer += more
    writer.close()
    await writer.wait_closed()
    return answer


def _frame(kind: int, flags: int, stream: int, payload: bytes) -> bytes:
    return pack(">I", len(payload))[1:] + pack(">BBI", kind, flags, stream) + payload


def _literal(name: bytes, value: bytes) -> bytes:
    """By HPACK, in full: nothing is indexed, nothing is compressed."""
    return b"\0" + bytes([len(name)]) + name + bytes([len(value)]) + value
