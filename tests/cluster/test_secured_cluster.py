"""`baton serve` with mutual TLS between its processes, and a token from the environment."""

from __future__ import annotations

import inspect
import textwrap
from pathlib import Path

import grpc
import httpx
import msgspec
import pytest
from tests.live_server import start_server, stop_server
from tests.secured_clusters import AUTHORITY, NOW, TOKEN, write_files

from baton.platform.security.certificate_authority import issue
from baton.proto import replica_pb2 as pb
from baton.proto.replica_pb2_grpc import ReplicaStub

pytestmark = [pytest.mark.cluster, pytest.mark.wide]

PROMPT = inspect.getsource(textwrap)[:1000]


def code_of(channel: grpc.Channel, token: str) -> grpc.StatusCode:
    try:
        ReplicaStub(channel).Inspect(
            pb.InspectRequest(), timeout=120, metadata=(("baton-cluster-token", token),)
        )
    except grpc.RpcError as error:
        code: grpc.StatusCode = error.code()
        return code
    return grpc.StatusCode.OK


def test_kv_travels_and_strangers_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = write_files(tmp_path / "certs")
    files.pop("token_file")
    config_file = tmp_path / "baton.yaml"
    config_file.write_bytes(msgspec.yaml.encode({"security": files}))
    monkeypatch.setenv("BATON_CLUSTER_TOKEN", TOKEN)
    server = start_server("-f", str(config_file))
    try:
        body = {"prompt": PROMPT, "max_tokens": 5, "temperature": 0, "receipt": True}
        answer = httpx.post(f"{server.url}/v1/completions", json=body, timeout=60).json()
        status = server.status()["pools"]
        address = status["decode"][0]["address"]
        own = issue(AUTHORITY, "baton", NOW, days=1)
        credentials = grpc.ssl_channel_credentials(
            AUTHORITY.certificate_pem, own.key_pem, own.certificate_pem
        )
        options = (("grpc.ssl_target_name_override", "baton"),)
        with (
            grpc.secure_channel(address, credentials, options) as known,
            grpc.insecure_channel(address) as plain,
        ):
            codes = [code_of(known, TOKEN), code_of(known, "another"), code_of(plain, TOKEN)]
    finally:
        exit_status = stop_server(server)

    assert answer["baton"]["kv_bytes"] > 0
    assert all(row["is_reachable"] for rows in status.values() for row in rows)
    assert codes == [
        grpc.StatusCode.OK,
        grpc.StatusCode.UNAUTHENTICATED,
        grpc.StatusCode.UNAVAILABLE,
    ]
    assert exit_status == 0
