"""A client of one HTTP endpoint with OpenAI's API, with all ways an answer can end."""

from __future__ import annotations

import ssl
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from email.utils import parsedate_to_datetime
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import aiohttp
import msgspec

from baton.core.clock import Clock, monotonic
from baton.core.errors import InvalidConfig, Unavailable
from baton.platform.load_generator.answer import AnswerReader, error_text
from baton.platform.load_generator.dialect import Api
from baton.platform.load_generator.outcome import Ending, Exchange

READ_BYTES = 1 << 16
"""Bytes read of an answer that is no stream, for its error message."""
IDLE_S = 2.0
"""Seconds after which an idle connection is not reused: servers close theirs after 5 s, and a
request on a closing connection would look like a cut-off answer."""
JSON = {"content-type": "application/json"}


class Endpoint:
    """A `LoadTarget` over HTTP (`baton.platform.load_generator.outcome`)."""

    def __init__(
        self, session: aiohttp.ClientSession, url: str, api: Api, clock: Clock = monotonic
    ) -> None:
        self.url = url
        self.api = api
        self._session = session
        self._clock = clock

    async def ask(self, body: bytes) -> Exchange:
        try:
            async with self._session.post(
                self.url + self.api.path, data=body, headers=JSON
            ) as response:
                return await self._answered(response)
        except (aiohttp.ClientPayloadError, aiohttp.ServerDisconnectedError) as error:
            return Exchange(ending=Ending.CUT, detail=_said(error))
        except (aiohttp.ClientConnectionError, OSError) as error:
            is_cut = isinstance(error, ConnectionResetError)
            ending = Ending.CUT if is_cut else Ending.UNREACHABLE
            return Exchange(ending=ending, detail=_said(error))
        except (aiohttp.ClientError, ValueError) as error:
            return Exchange(ending=Ending.NO_STREAM, detail=_said(error))

    async def first_model(self) -> str:
        """Raises Unavailable, or InvalidConfig where nothing is listed."""
        url = f"{self.url}/v1/models"
        try:
            async with self._session.get(url) as response:
                data = await response.content.read(READ_BYTES * 16)
        except (aiohttp.ClientError, OSError) as error:
            raise Unavailable(f"{self.url}: {_said(error)}; is the server up?") from None
        if response.status != 200:
            raise InvalidConfig(
                f"{url}: {response.status} {error_text(data)}; "
                + ("give an --api-key" if response.status in (401, 403) else "name a --model")
            )
        try:
            return str(msgspec.json.decode(data)["data"][0]["id"])
        except (msgspec.DecodeError, KeyError, IndexError, TypeError):
            raise InvalidConfig(f"{url} lists no model; name one with --model") from None

    async def _answered(self, response: aiohttp.ClientResponse) -> Exchange:
        if response.status != 200:
            text = error_text(await response.content.read(READ_BYTES))
            return Exchange(
                ending=_ending_of(response.status),
                detail=f"{response.status} {text}",
                retry_after_s=retry_after_s(response.headers.get("retry-after")),
            )
        if response.content_type != "text/event-stream":
            text = error_text(await response.content.read(READ_BYTES))
            return Exchange(ending=Ending.NO_STREAM, detail=f"{response.content_type}: {text}")
        reader = AnswerReader()
        try:
            async for data in response.content.iter_any():
                reader.feed(data, self._clock())
        except (aiohttp.ClientError, OSError) as error:
            return reader.cut(_said(error))
        return reader.finish()


@asynccontextmanager
async def connected(
    url: str, api: Api, *, api_key: str | None = None, ca_file: Path | None = None
) -> AsyncIterator[Endpoint]:
    """Raises InvalidConfig for an invalid `url` or `ca_file`."""
    try:
        context = ssl.create_default_context(cafile=ca_file)
    except ssl.SSLError as error:
        raise InvalidConfig(f"--ca-file {ca_file}: {error}; give PEM certificates") from None
    headers = {"authorization": f"Bearer {api_key}"} if api_key else {}
    async with aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(limit=0, ssl=context, keepalive_timeout=IDLE_S),
        headers=headers,
        timeout=aiohttp.ClientTimeout(total=None),  # the generator has its own timeout
        read_bufsize=READ_BYTES,
        trust_env=True,
    ) as session:
        yield Endpoint(session, base_url(url), api)


def base_url(url: str) -> str:
    """`url` without a trailing `/v1`. Raises InvalidConfig if it is no URL."""
    spelled = url if "://" in url else f"http://{url}"
    try:
        parts = urlsplit(spelled)
        is_good = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0
    except ValueError:
        is_good = False
    if not is_good:
        raise InvalidConfig(f"{url} is no URL; it looks like http://localhost:8000")
    return spelled.rstrip("/").removesuffix("/v1")


def retry_after_s(header: str | None) -> float | None:
    """Reads seconds, or a date, as RFC 9110 has it."""
    if header is None:
        return None
    if header.isdecimal():
        return float(header)
    try:
        date = parsedate_to_datetime(header)
    except ValueError:
        return None
    return max(0.0, date.timestamp() - time.time())


def _ending_of(status: int) -> Ending:
    if status == 429:
        return Ending.REJECTED
    if 400 <= status < 500:
        return Ending.REFUSED
    return Ending.SERVER_ERROR if status >= 500 else Ending.NO_STREAM


def _said(error: Any) -> str:
    return str(error) or type(error).__name__
