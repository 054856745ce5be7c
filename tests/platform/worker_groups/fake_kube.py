"""A small API server of Kubernetes: objects, versions, JSON patches, watches, and faults.

`FakeKube` is the store, `serve` puts it behind HTTP as the `kubernetes` client speaks it.
"""

from __future__ import annotations

import copy
import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qsl, urlsplit

from tests.served import served

Manifest = dict[str, Any]
REASONS = {403: "Forbidden", 404: "NotFound", 409: "Conflict", 410: "Expired", 422: "Invalid"}


class Refused(Exception):
    def __init__(self, status: int) -> None:
        super().__init__(REASONS.get(status, "InternalError"))
        self.status = status


@dataclass
class Fault:
    """What happens to a request whose `METHOD plural` is this."""

    request: str
    status: int = 500
    """0: the connection ends without an answer."""
    is_done: bool = False
    """The request is carried out, and only the answer is lost."""
    times: int = 1


@dataclass
class FakeKube:
    objects: dict[tuple[str, str], Manifest] = field(default_factory=dict)
    """By plural and name."""
    faults: list[Fault] = field(default_factory=list)
    patches: list[tuple[str, str, list[Manifest]]] = field(default_factory=list)
    """Those that were carried out."""
    before_patch: Callable[[str, str], None] = lambda plural, name: None
    """Somebody else who is faster."""
    before_done: Callable[[list[Manifest]], None] = lambda patch: None
    """Of a patch that fits."""
    history: list[tuple[int, str, str, Manifest]] = field(default_factory=list)
    oldest: int = 0
    """Versions before it are forgotten: who watches from there is told 410."""
    version: int = 0
    changed: threading.Condition = field(default_factory=threading.Condition)

    def put(self, plural: str, manifest: Manifest) -> Manifest:
        """Make it, or write it anew."""
        with self.changed:
            name = manifest["metadata"]["name"]
            kind = "MODIFIED" if (plural, name) in self.objects else "ADDED"
            self.version += 1
            kept = copy.deepcopy(manifest)
            kept["metadata"]["resourceVersion"] = str(self.version)
            self.objects[plural, name] = kept
            self.history.append((self.version, plural, kind, kept))
            self.changed.notify_all()
            return copy.deepcopy(kept)

    def remove(self, plural: str, name: str) -> None:
        with self.changed:
            self.version += 1
            gone = self.objects.pop((plural, name))
            self.history.append((self.version, plural, "DELETED", gone))
            self.changed.notify_all()

    def get(self, plural: str, name: str) -> Manifest:
        if (plural, name) not in self.objects:
            raise Refused(404)
        return copy.deepcopy(self.objects[plural, name])

    def listed(self, plural: str, labels: str = "", fields: str = "") -> list[Manifest]:
        wanted = dict(one.split("=") for one in labels.split(",") if one)
        name = fields.removeprefix("metadata.name=")
        return [
            copy.deepcopy(one)
            for (other, _), one in sorted(self.objects.items())
            if other == plural
            and wanted.items() <= (one["metadata"].get("labels") or {}).items()
            and name in ("", one["metadata"]["name"])
        ]

    def patch(self, plural: str, name: str, patch: list[Manifest]) -> Manifest:
        self.before_patch(plural, name)
        found = self.get(plural, name)
        for one in patch:
            *above, last = (step for step in one["path"].split("/")[1:])
            node: Any = found
            for step in above:
                node = node[int(step) if isinstance(node, list) else step]
            if one["op"] == "test":
                if node.get(last) != one["value"]:
                    raise Refused(422)
            else:
                node[last] = one["value"]
        self.before_done(patch)
        self.patches.append((plural, name, patch))
        return self.put(plural, found)

    def fault(self, request: str) -> Fault | None:
        for one in self.faults:
            if one.request == request and one.times:
                one.times -= 1
                return one
        return None

    @contextmanager
    def serve(self) -> Iterator[str]:
        """Its URL."""
        handler = type("Handler", (_Handler,), {"kube": self})
        with served(ThreadingHTTPServer(("127.0.0.1", 0), handler)) as url:
            yield url


class _Handler(BaseHTTPRequestHandler):
    kube: FakeKube
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def log_message(self, *args: Any) -> None:
        pass

    def do_GET(self) -> None:
        self._answer("GET", None)

    def do_PATCH(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if self.headers["Content-Type"] != "application/json-patch+json":
            return self._tell(415, {})
        self._answer("PATCH", body)

    def _answer(self, method: str, body: Any) -> None:
        url = urlsplit(self.path)
        query = dict(parse_qsl(url.query))
        steps = url.path.strip("/").split("/")[2 if url.path.startswith("/api/") else 3 :]
        if steps[0] == "namespaces":
            steps = steps[2:]
        plural, *name = steps
        fault = self.kube.fault(f"{method} {plural}")
        try:
            if fault is not None and not fault.is_done:
                raise Refused(fault.status)
            if query.get("watch"):
                return self._watch(plural, query)
            told = self._told(plural, name, query, body)
            if fault is not None:
                raise Refused(fault.status)
            self._tell(200, told)
        except Refused as error:
            if not error.status:
                self.close_connection = True
                return
            self._tell(error.status, _status(error.status))

    def _told(self, plural: str, name: list[str], query: Any, body: Any) -> Manifest:
        if body is not None:
            return self.kube.patch(plural, name[0], body)
        if name:
            return self.kube.get(plural, name[0])
        labels, fields = query.get("labelSelector", ""), query.get("fieldSelector", "")
        items = self.kube.listed(plural, labels, fields)
        return {"metadata": {"resourceVersion": str(self.kube.version)}, "items": items}

    def _tell(self, status: int, told: Manifest) -> None:
        body = json.dumps(told).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def _watch(self, plural: str, query: dict[str, str]) -> None:
        since = int(query["resourceVersion"])
        ends = time.monotonic() + float(query["timeoutSeconds"])
        self.close_connection = True
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        if since < self.kube.oldest:
            self._event("ERROR", _status(410))
            return self._end()
        while time.monotonic() < ends:
            with self.kube.changed:
                self.kube.changed.wait(0.05)
                news = [one for one in self.kube.history if one[0] > since]
            for version, of, kind, manifest in news:
                since = version
                if of == plural:
                    self._event(kind, manifest)

        self._end()

    def _end(self) -> None:
        self.wfile.write(b"0\r\n\r\n")

    def _event(self, kind: str, manifest: Manifest) -> None:
        line = json.dumps({"type": kind, "object": manifest}).encode() + b"\n"
        try:
            self.wfile.write(b"%x\r\n%s\r\n" % (len(line), line))
            self.wfile.flush()
        except OSError:
            raise Refused(0) from None


def _status(code: int) -> Manifest:
    reason = REASONS.get(code, "InternalError")
    return {"kind": "Status", "status": "Failure", "code": code, "reason": reason, "message": "no"}
