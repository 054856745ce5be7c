"""One HTTP request to a web server.

Credentials are not sent to another server after a redirect, and redirects from https to http are
refused.
"""

from __future__ import annotations

import http.client
import re
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from typing import IO, Any
from urllib.error import HTTPError, URLError
from urllib.parse import urlsplit
from urllib.request import HTTPRedirectHandler, Request, build_opener

from baton.core.errors import CheckpointError
from baton.platform.models.origins.origin import OriginUnreachable

TIMEOUT_S = 30.0
"""Seconds of silence after which a connection is given up."""
NOT_THERE = (404, 410)
HIDDEN = (*NOT_THERE, 403)
"""Statuses of missing files; includes 403, which S3 and CloudFront send to clients without the
right to list."""
LATER = (408, 425, 429)
"""Statuses worth a retry, besides 5xx."""
AUTHORIZATION = "Authorization"
_RANGE = re.compile(r"bytes (\d+)-\d+/(\d+|\*)")
_PIECE_BYTES = 1 << 20


class Answer:
    def __init__(self, url: str, response: http.client.HTTPResponse) -> None:
        self._url = url
        self._response = response
        is_part = response.status == 206
        found = _RANGE.fullmatch(response.headers.get("Content-Range", "")) if is_part else None
        self._start = int(found[1]) if found else 0
        self.is_placed = found is not None or not is_part
        """Whether the byte range of the answer is known; a server may send a part without saying
        which."""
        length = response.headers.get("Content-Length", "")
        self._num_bytes = int(length) if length.isdecimal() else None
        """Bytes of the body; None if it ends when the connection does."""

    @property
    def size(self) -> int | None:
        """Bytes of the whole file; None if they are not known."""
        return None if self._num_bytes is None else self._start + self._num_bytes

    @property
    def validator(self) -> str:
        headers = self._response.headers
        return headers.get("ETag") or headers.get("Last-Modified") or ""

    def pieces(self, most: int | None = None) -> Iterator[bytes]:
        """The body. Raises `OriginUnreachable` if it is cut, CheckpointError if it is longer than
        `most`."""
        num_bytes = 0
        while piece := self._read():
            num_bytes += len(piece)
            if most is not None and num_bytes > most:
                raise CheckpointError(f"{self._url} is longer than {most} bytes")
            yield piece
        if self._num_bytes is not None and num_bytes < self._num_bytes:
            raise OriginUnreachable(
                f"{self._url} was cut after {num_bytes} of {self._num_bytes} bytes"
            )

    def from_byte(self, start: int) -> Iterator[bytes]:
        """The file from `start` on, whether the server knows ranges or not."""
        if self._start > start:
            raise CheckpointError(f"{self._url}: asked from byte {start}, answers {self._start}")
        skip = start - self._start
        for piece in self.pieces():
            if skip < len(piece):
                yield piece[skip:]
            skip = max(0, skip - len(piece))

    def _read(self) -> bytes:
        try:
            return self._response.read(_PIECE_BYTES)
        except (OSError, http.client.HTTPException) as error:
            raise OriginUnreachable(f"{self._url}: {error!r}") from error


class _Redirects(HTTPRedirectHandler):
    def redirect_request(
        self, req: Request, fp: IO[bytes], code: int, msg: str, headers: Any, newurl: str
    ) -> Request | None:
        old, new = urlsplit(req.full_url), urlsplit(newurl)
        if new.scheme not in ("http", "https") or (old.scheme, new.scheme) == ("https", "http"):
            raise CheckpointError(f"{req.full_url} leads to {new.scheme}://, which is not followed")
        request = super().redirect_request(req, fp, code, msg, headers, newurl)
        if request is not None:
            request.method = req.get_method()
            for name, value in req.unredirected_hdrs.items():
                if name == AUTHORIZATION and (old.scheme, old.netloc) == (new.scheme, new.netloc):
                    request.add_unredirected_header(name, value)
        return request


@contextmanager
def ask(
    url: str, headers: Mapping[str, str], *, method: str = "GET", lacking: Collection[int] = ()
) -> Iterator[Answer | None]:
    """None where the status is one of `lacking`. Raises what origins raise."""
    request = Request(url, method=method)
    request.add_header("Accept-Encoding", "identity")
    request.add_header("User-Agent", "baton")
    for name, value in headers.items():
        if name.lower() == AUTHORIZATION.lower():
            request.add_unredirected_header(AUTHORIZATION, value)
        else:
            request.add_header(name, value)
    try:
        response = build_opener(_Redirects).open(request, timeout=TIMEOUT_S)
    except HTTPError as error:
        error.close()
        if error.code in lacking:
            yield None
            return
        raise _refusal(url, error.code) from None
    except (OSError, http.client.HTTPException) as error:  # URLError is an OSError
        reason = error.reason if isinstance(error, URLError) else error
        raise OriginUnreachable(f"{url}: {reason}") from error
    with response:
        yield Answer(url, response)


def _refusal(url: str, status: int) -> Exception:
    if status >= 500 or status in LATER:
        return OriginUnreachable(f"{url} answers {status}")
    remedy = ""
    if status in (401, 403):
        remedy = "; set BATON_MODEL_TOKEN (HF_TOKEN for the hub) in the environment of the nodes"
    return CheckpointError(f"{url} answers {status}{remedy}")
