"""What strangers try, and the status that each of them gets."""

from __future__ import annotations

import asyncio
import logging
import resource
from collections.abc import AsyncIterator
from dataclasses import replace

import grpc.aio
import pytest
import pytest_asyncio
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc
from tests.gateway.access.stranger_rows import (
    ADMIN_ROWS,
    CONFIG,
    DRAIN,
    EXPIRED,
    HASHED,
    OPERATOR,
    PAGE,
    ROWS,
    WATCHER,
    Row,
)
from tests.gateway.scripted import Serving, make_model, serving
from tests.raw_grpc import answer_to_path

from baton.core.tracing import UNTRACED, TracedCall
from baton.gateway.access.config import GatewayConfig
from baton.gateway.access.connections import num_affordable
from baton.gateway.access.key_entry import digest_of
from baton.gateway.http import edge
from baton.gateway.requests.gateway import Gateway
from baton.proto import inference_pb2 as pb
from baton.proto.inference_pb2_grpc import InferenceStub


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
