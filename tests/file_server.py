"""A web server on loopback that shows files: with ranges or without, cut short, or wrong."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import unquote

from tests.served import served


@dataclass(slots=True)
class FileServer:
    files: dict[str, bytes]
    """By path."""
    knows_ranges: bool = True
    places_parts: bool = True
    """Says of which bytes an answer is, and how many there are."""
    hides: bool = False
    """Forbids what is not there, as a bucket does to who may not list it."""
    cuts: list[int] = field(default_factory=list)
    """After so many bytes of their body the next answers about weights are cut."""
    redirects: dict[str, str] = field(default_factory=dict)
    """From a path to a URL."""
    is_down: bool = False
    asked: list[tuple[str, str]] = field(default_factory=list)
    """Paths whose bytes were asked for, and the range that was."""
    authorizations: list[str] = field(default_factory=list)
    url: str = ""

    def fetched(self) -> list[str]:
        """The files whose bytes were asked for, but of what says what there is."""
        return [path for path, _ in self.asked if not path.endswith(("SHA256SUMS", ".index.json"))]


class Server(ThreadingHTTPServer):
    def __init__(self, shown: FileServer) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.shown = shown


class Handler(BaseHTTPRequestHandler):
    server: Server

    def log_message(self, format: str, *args: object) -> None: ...

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_GET(self) -> None:
        shown, path = self.server.shown, unquote(self.path).removeprefix("/")
        shown.authorizations.append(self.headers.get("Authorization", ""))
        if shown.is_down:
            self.send_error(503)
        elif path in shown.redirects:
            self.send_response(302)
            self.send_header("Location", shown.redirects[path])
            self.end_headers()
        elif path not in shown.files:
            self.send_error(403 if shown.hides else 404)
        else:
            self.send_file(path, shown.files[path])

    def send_file(self, path: str, data: bytes) -> None:
        shown, wanted = self.server.shown, self.headers.get("Range", "")
        etag = f'"{hashlib.md5(data).hexdigest()}"'
        is_same = self.headers.get("If-Range", etag) == etag
        found = re.fullmatch(r"bytes=(\d+)-", wanted) if shown.knows_ranges and is_same else None
        start = int(found[1]) if found else 0
        self.send_response(206 if found else 200)
        if found and shown.places_parts:
            self.send_header("Content-Range", f"bytes {start}-{len(data) - 1}/{len(data)}")
        if not found or shown.places_parts:
            self.send_header("Content-Length", str(len(data) - start))
        self.send_header("ETag", etag)
        self.end_headers()
        if self.command == "GET":
            shown.asked.append((path, wanted))
            body = data[start:]
            if path.endswith(".safetensors") and shown.cuts:
                body = body[: shown.cuts.pop(0)]
            self.wfile.write(body)


@contextmanager
def file_server(files: dict[str, bytes]) -> Iterator[FileServer]:
    shown = FileServer(files)
    with served(Server(shown)) as shown.url:
        yield shown
