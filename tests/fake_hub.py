"""A Hugging Face hub on loopback, as much of it as downloading a model takes."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest
from tests.served import served

COMMIT = "0123456789abcdef0123456789abcdef01234567"


@dataclass(slots=True)
class FakeHub:
    """One repository. Its only branch is `main`, its only tag `v1`."""

    repo: str
    files: dict[str, bytes]
    status: int = 200
    """What every request is answered with, unless it is 200."""
    error_code: str = ""
    """The hub's own name of that answer."""
    wrong: dict[str, bytes] = field(default_factory=dict)
    """What comes in the place of a file's bytes."""
    url: str = ""
    fetched: list[str] = field(default_factory=list)
    """Files whose bytes were asked for."""

    def tree(self) -> list[dict[str, object]]:
        return [
            {"type": "file", "path": name, "size": len(data), "oid": etag(data)}
            for name, data in self.files.items()
        ]

    def info(self) -> dict[str, object]:
        siblings = [
            {"rfilename": name, "size": len(data), "blobId": etag(data)}
            for name, data in self.files.items()
        ]
        return {"id": self.repo, "sha": COMMIT, "siblings": siblings}


def etag(data: bytes) -> str:
    """As git names it."""
    return hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()


class Server(ThreadingHTTPServer):
    def __init__(self, hub: FakeHub) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.hub = hub


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Server

    def log_message(self, format: str, *args: object) -> None: ...

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_GET(self) -> None:
        hub = self.server.hub
        path = unquote(urlsplit(self.path).path).removeprefix("/")
        if hub.status != 200:
            self.refuse(hub.status, hub.error_code)
        elif path.startswith(f"{hub.repo}/resolve/"):
            self.send_file(path.removeprefix(f"{hub.repo}/resolve/").partition("/")[2])
        elif not path.startswith(f"api/models/{hub.repo}"):
            self.refuse(404, "RepoNotFound")
        else:
            match path.removeprefix(f"api/models/{hub.repo}").split("/"):
                case [""] | ["", "revision", "main" | "v1"]:
                    self.answer(json.dumps(hub.info()).encode())
                case ["", "tree", _]:
                    self.answer(json.dumps(hub.tree()).encode())
                case _:
                    self.refuse(404, "RevisionNotFound")

    def send_file(self, name: str) -> None:
        data = self.server.hub.wrong.get(name, self.server.hub.files[name])
        if self.command == "GET":
            self.server.hub.fetched.append(name)
        self.answer(data, headers={"ETag": f'"{etag(data)}"', "X-Repo-Commit": COMMIT})

    def refuse(self, status: int, error_code: str) -> None:
        self.answer(b"{}", status, {"X-Error-Code": error_code})

    def answer(
        self, body: bytes, status: int = 200, headers: Mapping[str, str] | None = None
    ) -> None:
        self.send_response(status)
        for key, value in (headers or {}).items():
            self.send_header(key, value)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(body)


def ask_only(hub: FakeHub, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Make it the only hub for this process, with caches of its own in `folder`."""
    constants = "huggingface_hub.constants"
    template = hub.url + "/{repo_id}/resolve/{revision}/{filename}"
    monkeypatch.setattr(f"{constants}.ENDPOINT", hub.url)
    monkeypatch.setattr(f"{constants}.HUGGINGFACE_CO_URL_TEMPLATE", template)
    monkeypatch.setattr(f"{constants}.HF_HUB_CACHE", str(folder / "hf"))
    monkeypatch.setenv("BATON_MODEL_CACHE", str(folder / "cache"))
    monkeypatch.setattr(f"{constants}.HF_HUB_OFFLINE", False)


@contextmanager
def fake_hub(repo: str, files: dict[str, bytes]) -> Iterator[FakeHub]:
    hub = FakeHub(repo, files)
    with served(Server(hub)) as hub.url:
        yield hub
