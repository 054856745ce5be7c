"""What strangers try, and the status that each of them gets."""

from __future__ import annotations

import asyncio
import logging
import resource
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import grpc.aio
import pytest
import pytest_asyncio
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc
from tests.gateway.scripted import MODEL, Serving, make_model, serving
from tests.raw_grpc import answer_to_path

from baton.core.tracing import UNTRACED, TracedCall
from baton.gateway.access.config import GatewayConfig, TenantConfig
from baton.gateway.access.connections import num_affordable
from baton.gateway.access.key_entry import digest_of
from baton.gateway.http import edge
from baton.gateway.requests.gateway import Gateway
from baton.proto import inference_pb2 as pb
from baton.proto.inference_pb2_grpc import InferenceStub

OPERATOR, ACME, BELL = "operator-key", "acme-key", "bell-key"
EXPIRED, WATCHER, HASHED = "expired-key", "watcher-key", "hashed-key"
SCRAPER, SMALL, ELSEWHERE = "scraper-key", "small-key", "elsewhere-key"


def line(key: str, words: str = "") -> str:
    return f"sha256:{digest_of(key).hex()} {words}"


LATE = line(EXPIRED, "expires=2020-01-01")
CONFIG: dict[str, Any] = {
    "operator_keys": frozenset(
        {
            OPERATOR,
            line(WATCHER, "name=watcher scopes=admin"),
            line(SCRAPER, "name=prometheus scopes=metrics"),
        }
    ),
    "api_keys": frozenset(
        {
            line(HASHED, "name=ci expires=2999-01-01"),
            LATE,
            line(SMALL, "name=small models=small+other"),
            line(ELSEWHERE, "name=elsewhere models=org/large"),
        }
    ),
    "tenants": {
        name: TenantConfig(api_keys=frozenset({key}))
        for name, key in (("acme", ACME), ("bell", BELL))
    },
    "max_body_bytes": 2000,
    "max_header_bytes": 20_000,
    "header_timeout_s": 0.5,
    "body_timeout_s": 0.5,
    "access_log": True,
    "admin_port": 0,
}
BODY = '{"model": "org/tiny", "prompt": [5, 6], "max_tokens": 1}'
COMPLETE = "POST /v1/completions"
DRAIN = '{"replica": "d0"}'
PAGE = {"origin": "https://elsewhere.example"}

CHUNKED = {"transfer-encoding": "chunked"}


def chunked(behind: str) -> str:
    """The body in one chunk, and what stands behind it."""
    return f"{len(BODY):x}\r\n{BODY}\r\n0\r\n{behind}\r\n"


Row = tuple[str, str | None, dict[str, str], str, int]

ROWS: dict[str, Row] = {
    "a key": (COMPLETE, ACME, {}, BODY, 200),
    "a key kept as its hash": (COMPLETE, HASHED, {}, BODY, 200),
    "an operator": (COMPLETE, OPERATOR, {}, BODY, 200),
    "no key": (COMPLETE, None, {}, BODY, 401),
    "an empty key": (COMPLETE, "", {}, BODY, 401),
    "an unknown key": (COMPLETE, "guess", {}, BODY, 401),
    "a key that has expired": (COMPLETE, EXPIRED, {}, BODY, 401),
    "a key with something behind it": (COMPLETE, f"{ACME}x", {}, BODY, 401),
    "the beginning of a key": (COMPLETE, ACME[:-1], {}, BODY, 401),
    "the line of a hashed key for a key": (COMPLETE, line(HASHED).strip(), {}, BODY, 401),
    "another scheme": (COMPLETE, None, {"authorization": f"Basic {ACME}"}, BODY, 401),
    "the key in Anthropic's header": (COMPLETE, None, {"x-api-key": ACME}, BODY, 200),
    "a wrong key in Anthropic's header": (COMPLETE, None, {"x-api-key": "wrong"}, BODY, 401),
    "the key in another header": (COMPLETE, None, {"api-key": ACME}, BODY, 401),
    "the key in the query": (f"{COMPLETE}?api_key={ACME}", None, {}, BODY, 401),
    "a key without the scope": (COMPLETE, WATCHER, {}, BODY, 403),
    "a completion with a scraper's key": (COMPLETE, SCRAPER, {}, BODY, 403),
    "a model that the key is for": (COMPLETE, SMALL, {}, BODY.replace(MODEL, "small"), 200),
    "a model that the key is not for": (COMPLETE, SMALL, {}, BODY, 403),
    "no model with a key of other models": (COMPLETE, ELSEWHERE, {}, '{"prompt": [5]}', 403),
    "a model that is not there, with such a key": (
        COMPLETE,
        ELSEWHERE,
        {},
        BODY.replace(MODEL, "org/large"),
        404,
    ),
    "a message to a model that the key is not for": (
        "POST /v1/messages",
        SMALL,
        {},
        f'{{"model": "{MODEL}", "max_tokens": 1, "messages": []}}',
        403,
    ),
    "a response of a model that the key is not for": (
        "POST /v1/responses",
        SMALL,
        {},
        f'{{"model": "{MODEL}", "input": "x"}}',
        403,
    ),
    "tokens of a model that the key is not for": (
        "POST /tokenize",
        SMALL,
        {},
        f'{{"model": "{MODEL}", "prompt": "x"}}',
        403,
    ),
    "embeddings of a model that the key is not for": (
        "POST /v1/embeddings",
        SMALL,
        {},
        f'{{"model": "{MODEL}", "input": "x"}}',
        403,
    ),
    "reranking by a model that the key is not for": (
        "POST /v1/rerank",
        SMALL,
        {},
        f'{{"model": "{MODEL}", "query": "x", "documents": ["y"]}}',
        403,
    ),
    "an estimate of a model that the key is not for": ("POST /v1/estimate", SMALL, {}, BODY, 403),
    "a name of the model that the key is not for": (f"GET /v1/models/{MODEL}", SMALL, {}, "", 403),
    "models without a key": ("GET /v1/models", None, {}, "", 401),
    "tokenising without a key": ("POST /tokenize", None, {}, "{}", 401),
    "embeddings without a key": ("POST /v1/embeddings", None, {}, "{}", 401),
    "reranking without a key": ("POST /v2/rerank", None, {}, "{}", 401),
    "scoring without a key": ("POST /score", None, {}, "{}", 401),
    "an estimate without a key": ("POST /v1/estimate", None, {}, "{}", 401),
    "a stream without a key": ("GET /v1/streams", None, {}, "", 401),
    "status": ("GET /debug/status", None, {}, "", 404),
    "status with a tenant's key": ("GET /debug/status", ACME, {}, "", 404),
    "status with an operator's key": ("GET /debug/status", OPERATOR, {}, "", 404),
    "leaks with an operator's key": ("GET /debug/leaks", WATCHER, {}, "", 404),
    "decisions with an operator's key": ("GET /debug/decisions", OPERATOR, {}, "", 404),
    "metrics with an operator's key": ("GET /metrics", OPERATOR, {}, "", 404),
    "a drain with an operator's key": ("POST /debug/drain", OPERATOR, {}, DRAIN, 404),
    "an undrain with an operator's key": ("POST /debug/undrain", OPERATOR, {}, DRAIN, 404),
    "a flip with an operator's key": ("POST /debug/flip", OPERATOR, {}, DRAIN, 404),
    "a reset of caches": ("POST /debug/reset_prefix_cache", OPERATOR, {}, DRAIN, 404),
    "a request of nobody": ("GET /v1/requests/x", ACME, {}, "", 404),
    "a request without a key": ("GET /v1/requests/x", None, {}, "", 401),
    "a response of nobody": ("GET /v1/responses/x", ACME, {}, "", 404),
    "a response without a key": ("GET /v1/responses/x", None, {}, "", 401),
    "the console, which is empty without a key": ("GET /console", None, {}, "", 200),
    "what lies beside the console's files": ("GET /console/..%2fapp.py", None, {}, "", 404),
    "an upper-case path": ("GET /DEBUG/status", ACME, {}, "", 404),
    "a doubled slash": ("GET //debug/status", ACME, {}, "", 404),
    "a path upwards": ("GET /v1/../debug/status", ACME, {}, "", 404),
    "an encoded path": ("GET /%64ebug/status", OPERATOR, {}, "", 404),
    "an encoded slash": ("GET /debug%2Fstatus", OPERATOR, {}, "", 404),
    "an encoded letter of a path that is guarded": ("GET /%761/models", None, {}, "", 401),
    "a slash at the end": ("GET /debug/status/", OPERATOR, {}, "", 404),
    "what is not there": ("GET /.env", None, {}, "", 404),
    "another method": ("DELETE /v1/completions", ACME, {}, "", 405),
    "a made-up method": ("BREW /v1/completions", ACME, {}, "", 400),
    "a body that is too large": (COMPLETE, ACME, {}, '{"prompt": "' + "x" * 3000 + '"}', 413),
    "a length that is too large": (COMPLETE, ACME, {"content-length": "9" * 12}, "", 413),
    "no JSON": (COMPLETE, ACME, {}, "{", 400),
    "deep JSON": (COMPLETE, ACME, {}, "[" * 1500, 400),
    "bytes that are no text": (COMPLETE, ACME, {}, "\udcff\udcfe", 400),
    "a request id with a line in it": (COMPLETE, ACME, {"x-request-id": "a b\tc"}, BODY, 400),
    "a request id that is too long": (COMPLETE, ACME, {"x-request-id": "a" * 500}, BODY, 400),
    "a trace that is none": (COMPLETE, ACME, {"traceparent": "00-zz-zz-99"}, BODY, 200),
    "too many headers": (COMPLETE, ACME, {f"x-{i}": "" for i in range(120)}, BODY, 400),
    "headers that are too large": (COMPLETE, ACME, {"x-a": "a" * 90_000}, BODY, 400),
    "a length twice": (COMPLETE, ACME, {"content-length": "5\r\ncontent-length: 50"}, BODY, 400),
    "a length and chunks": (
        COMPLETE,
        ACME,
        {"content-length": "5\r\ntransfer-encoding: chunked"},
        "0\r\n\r\n",
        400,
    ),
    "fields behind the body": (COMPLETE, ACME, CHUNKED, chunked("x-a: b\r\n"), 200),
    "a key behind the body": (
        COMPLETE,
        None,
        CHUNKED,
        chunked(f"authorization: Bearer {ACME}\r\n"),
        401,
    ),
    "too many fields behind the body": (COMPLETE, ACME, CHUNKED, chunked("x: y\r\n" * 120), 400),
    "a large field behind the body": (
        COMPLETE,
        ACME,
        CHUNKED,
        chunked(f"x: {'y' * 30_000}\r\n"),
        400,
    ),
    "a negative length": (COMPLETE, ACME, {"content-length": "-1"}, "", 400),
    "a folded header": (COMPLETE, ACME, {"x-a": "b\r\n c"}, BODY, 400),
    "a space before the colon": (COMPLETE, ACME, {"content-length ": "5"}, BODY, 400),
    "another tenant's priority": (COMPLETE, ACME, {}, BODY[:-1] + ', "priority": -5}', 403),
    "a body that does not come": (COMPLETE, ACME, {"content-length": "50"}, "", 408),
}

ADMIN_ROWS: dict[str, Row] = {
    "status without a key": ("GET /debug/status", None, {}, "", 401),
    "status with a tenant's key": ("GET /debug/status", ACME, {}, "", 403),
    "status with a key that has expired": ("GET /debug/status", EXPIRED, {}, "", 401),
    "status with an operator's key": ("GET /debug/status", WATCHER, {}, "", 200),
    "leaks with a tenant's key": ("GET /debug/leaks", ACME, {}, "", 403),
    "decisions with a tenant's key": ("GET /debug/decisions", ACME, {}, "", 403),
    "requests of others with a tenant's key": ("GET /v1/requests/x", ACME, {}, "", 403),
    "requests of nobody with an operator's key": ("GET /v1/requests/x", WATCHER, {}, "", 404),
    "metrics without a key": ("GET /metrics", None, {}, "", 401),
    "metrics with an operator's key": ("GET /metrics", WATCHER, {}, "", 200),
    "metrics with a scraper's key": ("GET /metrics", SCRAPER, {}, "", 200),
    "metrics with a tenant's key": ("GET /metrics", ACME, {}, "", 403),
    "status with a scraper's key": ("GET /debug/status", SCRAPER, {}, "", 403),
    "a drain with a scraper's key": ("POST /debug/drain", SCRAPER, {}, DRAIN, 403),
    "a drain without a key": ("POST /debug/drain", None, {}, DRAIN, 401),
    "a drain with a tenant's key": ("POST /debug/drain", BELL, {}, DRAIN, 403),
    "a drain with an operator's key": ("POST /debug/drain", OPERATOR, {}, DRAIN, 200),
    "a drain of nobody": ("POST /debug/drain", OPERATOR, {}, '{"replica": "x"}', 400),
    "a drain by a web page": ("POST /debug/drain", OPERATOR, PAGE, DRAIN, 403),
    "a drain by a sandboxed page": ("POST /debug/drain", OPERATOR, {"origin": "null"}, DRAIN, 403),
    "a completion": (COMPLETE, OPERATOR, {}, BODY, 404),
    "the console": ("GET /console", None, {}, "", 200),
    "a file of the console": ("GET /console/main.js", None, {}, "", 200),
    "the console by a web page": ("GET /console", None, PAGE, "", 403),
    "a path out of the console": ("GET /console/../debug/status", None, {}, "", 404),
    "what lies beside the console": ("GET /consoles", None, {}, "", 401),
    "its docs without a key": ("GET /docs", None, {}, "", 401),
    "what is not there, without a key": ("GET /.env", None, {}, "", 401),
    "health without a key": ("GET /health", None, {}, "", 401),
    "headers that are too large": ("GET /metrics", OPERATOR, {"x-a": "a" * 90_000}, "", 400),
}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def served() -> AsyncIterator[Serving]:
    model = replace(make_model(), aliases=("small", "other"))
    async with serving(model=model, **CONFIG) as gateway:
        yield gateway


async def status_of(port: int, row: Row) -> int:
    """Written by hand, for libraries send no such things."""
    request, key, headers, body, _ = row
    data = body.encode(errors="surrogateescape")
    lines = [f"{request} HTTP/1.1", "connection: close"]
    if "host" not in headers:
        lines.append("host: x")
    if key is not None:
        lines.append(f"authorization: Bearer {key}")
    if not any(name.strip().startswith(("content-length", "transfer-")) for name in headers):
        lines.append(f"content-length: {len(data)}")
    lines += [f"{name}: {value}" for name, value in headers.items()]
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write("\r\n".join([*lines, "", ""]).encode() + data)
    try:
        async with asyncio.timeout(120):
            first = await reader.readline()
    except ConnectionResetError:
        return 0
    finally:
        writer.close()
    return int(first.split()[1])


@pytest.mark.asyncio(loop_scope="module")
async def test_each_gets_the_status_that_is_his(served: Serving) -> None:
    public, admin = served.server.http_port, served.server.admin_port
    found = await asyncio.gather(
        *(status_of(public, row) for row in ROWS.values()),
        *(status_of(admin, row) for row in ADMIN_ROWS.values()),
    )

    rows = {**ROWS, **{f"{name}, at the admin port": row for name, row in ADMIN_ROWS.items()}}
    got = dict(zip(rows, found, strict=True))
    assert got == {name: row[-1] for name, row in rows.items()}


@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.parametrize(
    ("key", "status"),
    [
        (None, "UNAUTHENTICATED"),
        ("guess", "UNAUTHENTICATED"),
        (EXPIRED, "UNAUTHENTICATED"),
        (WATCHER, "PERMISSION_DENIED"),
        (HASHED, "OK"),
    ],
)
async def test_grpc_knows_the_same_keys(served: Serving, key: str | None, status: str) -> None:
    metadata = () if key is None else (("authorization", f"Bearer {key}"),)
    async with grpc.aio.insecure_channel(served.grpc_target) as channel:
        call = InferenceStub(channel).ListModels(pb.ListModelsRequest(), metadata=metadata)
        assert (await call.code()).name == status


@pytest.mark.asyncio(loop_scope="module")
async def test_reflection_asks_for_no_key_and_tells_of_services_alone(served: Serving) -> None:
    ask = reflection_pb2.ServerReflectionRequest(list_services="")
    async with grpc.aio.insecure_channel(served.grpc_target) as channel:
        stub = reflection_pb2_grpc.ServerReflectionStub(channel)
        [told] = [answer async for answer in stub.ServerReflectionInfo(iter([ask]))]

    names = {service.name for service in told.list_services_response.service}
    assert {name.rpartition(".")[0] for name in names} == {
        "baton.v1",
        "grpc.health.v1",
        "grpc.reflection.v1alpha",
    }


@pytest.mark.asyncio(loop_scope="module")
async def test_no_path_closes_the_grpc_port(served: Serving) -> None:
    await answer_to_path(served.grpc_target, b"/baton.v1.Inference/\xff")

    async with grpc.aio.insecure_channel(served.grpc_target) as channel:
        metadata = (("authorization", f"Bearer {HASHED}"),)
        await InferenceStub(channel).ListModels(pb.ListModelsRequest(), metadata=metadata)


@pytest.mark.asyncio(loop_scope="module")
async def test_the_log_tells_who_operated_and_who_was_refused_but_no_key_and_no_prompt(
    served: Serving, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "baton.gateway.access")

    await status_of(served.server.http_port, ROWS["an unknown key"])
    await status_of(served.server.http_port, ROWS["a model that the key is not for"])
    await status_of(served.server.admin_port, ADMIN_ROWS["a drain of nobody"])
    await status_of(served.server.http_port, ROWS["a key kept as its hash"])

    def told(logger: str) -> list[tuple[str, str, str]]:
        return [
            (r.getMessage(), vars(r)["status"], vars(r)["key"])
            for r in caplog.records
            if r.name == f"baton.gateway.access.{logger}"
        ]

    operator = digest_of(OPERATOR).hex()[:8]
    assert told("audit") == [
        ("refused", "401", ""),
        ("refused", "403", "small"),
        ("operated", "400", operator),
    ]
    assert told("calls")[-1] == ("call", "200", "ci")
    text = " ".join(str(vars(record)) for record in caplog.records)
    assert OPERATOR not in text and HASHED not in text and "guess" not in text


@pytest.mark.asyncio(loop_scope="module")
async def test_strangers_write_no_spans_and_no_long_lines(
    served: Serving, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    caplog.set_level(logging.INFO, "baton.gateway.access")
    begun: list[str] = []

    def begin(gateway: Gateway, operation: str, **about: object) -> TracedCall:
        begun.append(operation)
        return UNTRACED

    monkeypatch.setattr(edge, "begin_call", begin)

    await status_of(served.server.http_port, ROWS["no key"])
    await status_of(served.server.http_port, (f"GET /v1/{'x' * 3000}", None, {}, "", 401))
    assert begun == []
    assert max(len(vars(record).get("path", "")) for record in caplog.records) == 200
    await status_of(served.server.http_port, ROWS["a key"])
    assert begun == ["text_completion"]


async def test_without_keys_only_this_machine_itself_operates() -> None:
    drain = "POST /debug/drain"
    async with serving(admin_port=0) as gateway:
        port = gateway.server.admin_port
        own = {"origin": f"http://localhost:{port}", "host": f"localhost:{port}"}
        rows: list[Row] = [
            (drain, None, {"host": f"127.0.0.1:{port}"}, DRAIN, 200),
            (drain, None, {"host": f"[::1]:{port}"}, DRAIN, 200),
            (drain, None, own, DRAIN, 200),
            (drain, None, {"host": "rebound.example"}, DRAIN, 400),
            (drain, None, {**PAGE, "host": "localhost"}, DRAIN, 403),
            (drain, None, {"host": "127.0.0.1.rebound.example"}, DRAIN, 400),
            (drain, None, {"host": "[::1"}, DRAIN, 400),
        ]
        found = [await status_of(port, row) for row in rows]

    assert found == [row[-1] for row in rows]


def test_operators_without_keys_are_not_let_in_from_elsewhere() -> None:
    with pytest.raises(ValueError, match="operator_keys"):
        GatewayConfig(admin_host="0.0.0.0", api_keys=frozenset({"k"}))
    GatewayConfig(admin_host="0.0.0.0", operator_keys=frozenset({"k"}))
    GatewayConfig(admin_host="::1")


async def test_operators_at_the_public_port_are_told_by_the_log_alone_where_to_ask(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO, "baton.gateway.http.edge")
    async with serving() as gateway:
        answers = [await gateway.http.get(path) for path in ("/debug/status", "/metrics", "/x")]

    assert [answer.status_code for answer in answers] == [404] * 3
    assert "admin" not in " ".join(answer.text for answer in answers)
    told = [r.getMessage() for r in caplog.records if r.name == "baton.gateway.http.edge"]
    assert len(told) == 1 and "gateway.admin_port" in told[0]


@pytest.mark.parametrize(
    ("limit", "asked", "affordable"), [(1024, 4096, 384), (20_000, 4096, 4096)]
)
def test_connections_leave_files_to_open(
    limit: int, asked: int, affordable: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda kind: (limit, limit))

    assert num_affordable(asked) == affordable
