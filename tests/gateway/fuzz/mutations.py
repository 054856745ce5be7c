"""Requests bent out of shape: of valid ones, by a seed."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Sequence
from copy import deepcopy
from typing import Any

PIECES = (
    b"\r\n", b"\r\n\r\n", b"\n", b"\0", b" ", b"\t", b":", b"/", b"%2e%2e/", b"%00", b"%", b"?",
    b"#", b"HTTP/1.0", b"HTTP/9.9", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    b"Transfer-Encoding: chunked\r\n", b"Transfer-Encoding: chunked, identity\r\n",
    b"Content-Length: 0\r\n", b"Content-Length: -1\r\n",
    b"Content-Length: 99999999999999999999\r\n", b"Expect: 100-continue\r\n", b"Host: a\r\n",
    b"Connection: Upgrade\r\nUpgrade: websocket\r\n", b"Connection: Upgrade\r\nUpgrade: h2c\r\n",
    b"Connection: close\r\n", b"Connection: keep-alive\r\n", b"Content-Encoding: gzip\r\n",
    b"Last-Event-ID: x:1\r\n", b"traceparent: 00-zz\r\n", b"x-request-id: a\r\n",
    b"x-baton-resumable: 1\r\n", b"ffffffffffffffff\r\n", b"0\r\n\r\n", b"-1\r\n", b"\xff\xfe",
    b"\xed\xa0\x80", b'"', b"\\", b"\\ud800", b"[" * 500, b"{" * 500, b"1e999", b"-0", b"NaN",
    b"null", b"9" * 400, b"x" * 5000, b"{{ 7 * 7 }}",
)  # fmt: skip
NAMES = ("", "stream", "n", "tools", "logit_bias", "made_up", "stop", "seed")
ODD_VALUES: tuple[Any, ...] = (
    None, True, -1, 0, 1, 2**31, 2**63, 2**64, 10**400, 0.5, -1e308, 1e308, "", "x", "\0",
    "\ud800", "a" * 4000, [], [[]], {}, {"": None}, [0] * 300, ["x"] * 300, [-1], [2**40],
    {"type": "x"}, {"role": "user"},
)  # fmt: skip


def mutated(data: bytes, draw: random.Random, others: Sequence[bytes]) -> bytes:
    """Bent in up to four places; one in ten as it is."""
    for _ in range(draw.choice((0, 1, 1, 1, 1, 2, 2, 3, 4, 4))):
        data = draw.choice(WAYS)(data, draw, others)
    return data


def _flip(data: bytes, draw: random.Random, others: Sequence[bytes]) -> bytes:
    place = draw.randrange(len(data) + 1)
    return data[:place] + bytes([draw.randrange(256)]) + data[place + 1 :]


def _cut(data: bytes, draw: random.Random, others: Sequence[bytes]) -> bytes:
    start, end = _span(data, draw)
    return data[:start] + data[end:]


def _repeat(data: bytes, draw: random.Random, others: Sequence[bytes]) -> bytes:
    start, end = _span(data, draw)
    return data[:end] + data[start:end] * draw.choice((1, 2, 30)) + data[end:]


def _insert(data: bytes, draw: random.Random, others: Sequence[bytes]) -> bytes:
    place = draw.randrange(len(data) + 1)
    piece = draw.choice(PIECES) if draw.random() < 0.8 else draw.randbytes(draw.randrange(1, 40))
    return data[:place] + piece + data[place:]


def _insert_line(data: bytes, draw: random.Random, others: Sequence[bytes]) -> bytes:
    """Behind a header."""
    lines = data.split(b"\r\n")
    lines.insert(draw.randrange(1, len(lines) + 1), draw.choice(PIECES).removesuffix(b"\r\n"))
    return b"\r\n".join(lines)


def _truncate(data: bytes, draw: random.Random, others: Sequence[bytes]) -> bytes:
    return data[: draw.randrange(len(data) + 1)]


def _splice(data: bytes, draw: random.Random, others: Sequence[bytes]) -> bytes:
    other = draw.choice(others)
    return data[: draw.randrange(len(data) + 1)] + other[draw.randrange(len(other) + 1) :]


WAYS: tuple[Callable[[bytes, random.Random, Sequence[bytes]], bytes], ...] = (
    _flip, _cut, _repeat, _insert, _insert, _insert_line, _truncate, _splice
)  # fmt: skip


def _span(data: bytes, draw: random.Random) -> tuple[int, int]:
    start = draw.randrange(len(data) + 1)
    return start, min(len(data), start + draw.choice((1, 2, 8, 64)))


def bent_body(body: Any, draw: random.Random) -> bytes:
    """As JSON, with odd values in up to three places."""
    bent = json.loads(json.dumps(body))
    for _ in range(draw.randrange(4)):
        _bend(bent, draw)
    return json.dumps(bent).encode()


def _bend(value: Any, draw: random.Random) -> None:
    """One of what is inside of it, however deep."""
    keys: list[Any] = list(value) if isinstance(value, dict) else list(range(len(value)))
    if isinstance(value, dict) and draw.random() < 0.2:
        keys.append(
            draw.choice(("", "stream", "n", "tools", "logit_bias", "made_up", "stop", "seed"))
        )
    if not keys:
        return
    key = draw.choice(keys)
    inside = value[key] if isinstance(value, list) else value.get(key)
    if isinstance(inside, dict | list) and inside and draw.random() < 0.7:
        _bend(inside, draw)
    else:
        value[key] = deepcopy(draw.choice(ODD_VALUES))
