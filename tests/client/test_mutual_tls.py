"""Servers that ask who their clients are."""

from __future__ import annotations

from pathlib import Path

import grpc
import pytest
from tests.client.both_clients import KINDS, client_of
from tests.client.fake_server import answering, fake_server
from tests.gateway.certificates import make_certificate

from baton.client.errors import Unavailable
from baton.client.retry import RetryPolicy
from baton.proto import inference_pb2 as pb

ONCE = RetryPolicy(max_attempts=1)


@pytest.mark.parametrize("kind", KINDS)
async def test_a_client_shows_its_certificate(tmp_path: Path, kind: str) -> None:
    server, client = make_certificate(tmp_path), make_certificate(tmp_path, "client")
    pair = (server.key_file.read_bytes(), server.cert_file.read_bytes())
    credentials = grpc.ssl_server_credentials(
        [pair], root_certificates=client.cert_file.read_bytes(), require_client_auth=True
    )
    own = {"client_cert": client.cert_file, "client_key": client.key_file}
    trust = {"ca_cert": server.cert_file, "retry": ONCE}

    with fake_server(answering(pb.ListModelsResponse()), credentials=credentials) as (_, target):
        async with client_of(kind, target, **trust, **own) as known:
            models = await known.models()
        async with client_of(kind, target, **trust) as unknown:
            with pytest.raises(Unavailable):
                await unknown.models()

    assert models == []
