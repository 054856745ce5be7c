"""Both ports encrypted; certificates that cannot be used are found before anything starts."""

from __future__ import annotations

import asyncio
import os
import resource
import ssl
import subprocess
from pathlib import Path
from typing import Any

import httpx
import pytest
from tests.client.both_clients import KINDS, client_of
from tests.gateway.certificates import Certificate, make_certificate
from tests.gateway.fleet.scripted_replica import until
from tests.gateway.scripted import MODEL, Script, serving, tokens_of

from baton.client.errors import Unavailable
from baton.client.retry import RetryPolicy
from baton.core.clock import ManualClock
from baton.core.errors import InvalidConfig
from baton.gateway.access.config import GatewayConfig
from baton.gateway.access.connections import Connections, Refusal
from baton.gateway.access.tls import RETRY_S, TlsIdentity, tls_identity

ONCE = RetryPolicy(max_attempts=1)


def settings_of(made: Certificate) -> dict[str, Any]:
    return {"tls_cert_file": str(made.cert_file), "tls_key_file": str(made.key_file)}


def config_with(cert_file: Path, key_file: Path) -> GatewayConfig:
    return GatewayConfig(tls_cert_file=str(cert_file), tls_key_file=str(key_file))


@pytest.mark.parametrize("kind", KINDS)
async def test_both_ports_are_encrypted(tmp_path: Path, kind: str) -> None:
    made = make_certificate(tmp_path)
    files = settings_of(made)
    async with serving(Script(tokens=tokens_of("the fox")), **files) as gateway:
        url = gateway.url.replace("http://", "https://")
        trust = ssl.create_default_context(cafile=made.cert_file)
        async with httpx.AsyncClient(base_url=url, verify=trust) as http:
            models = (await http.get("/v1/models")).json()
        async with client_of(kind, gateway.grpc_target, ca_cert=made.cert_file) as client:
            result = await client.generate("Hello")
        async with client_of(kind, gateway.grpc_target, retry=ONCE) as plaintext:
            with pytest.raises(Unavailable):
                await plaintext.models()
        with pytest.raises(httpx.HTTPError):
            await gateway.http.get("/v1/models")

    assert models["data"][0]["id"] == MODEL
    assert result.text == "the fox"


@pytest.mark.parametrize("kind", KINDS)
async def test_a_server_that_others_vouch_for_is_not_trusted(tmp_path: Path, kind: str) -> None:
    made, other = make_certificate(tmp_path), make_certificate(tmp_path, "other")
    files = settings_of(made)
    async with (
        serving(**files) as gateway,
        client_of(
            kind, gateway.grpc_target, ca_cert=other.cert_file.read_bytes(), retry=ONCE
        ) as client,
    ):
        with pytest.raises(Unavailable):
            await client.models()


@pytest.mark.parametrize("face", ["http", "grpc"])
async def test_a_renewed_certificate_is_shown_at_once_and_a_broken_one_is_not(
    tmp_path: Path, face: str, caplog: pytest.LogCaptureFixture
) -> None:
    made, newer = make_certificate(tmp_path), make_certificate(tmp_path, "newer")
    trust = newer.cert_file.read_bytes()
    async with serving(**settings_of(made)) as gateway:

        async def models() -> list[str]:
            if face == "grpc":
                async with client_of("async", gateway.grpc_target, ca_cert=trust, retry=ONCE) as it:
                    return [one.id for one in await it.models()]
            url = gateway.url.replace("http://", "https://")
            context = ssl.create_default_context(cadata=trust.decode())
            async with httpx.AsyncClient(base_url=url, verify=context) as http:
                return [one["id"] for one in (await http.get("/v1/models")).json()["data"]]

        with pytest.raises((Unavailable, httpx.ConnectError)):
            await models()
        made.key_file.write_bytes(newer.key_file.read_bytes())
        made.cert_file.write_bytes(trust)
        renewed = await models()
        made.cert_file.write_text("half a certif")
        kept = await models()

    assert renewed == kept == [MODEL]
    assert "gateway.tls_cert_file cannot be used" in caplog.text


def test_files_that_could_not_be_read_are_tried_again(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    made, newer = make_certificate(tmp_path), make_certificate(tmp_path, "newer")
    clock = ManualClock()
    identity = TlsIdentity(str(made.cert_file), str(made.key_file), clock)
    old = identity.pem()
    made.key_file.write_bytes(newer.key_file.read_bytes())
    made.cert_file.write_bytes(newer.cert_file.read_bytes())

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (0, hard))
    try:
        pems = [identity.pem()]
        clock.advance(RETRY_S)
        pems.append(identity.pem())
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    pems.append(identity.pem())  # too early

    assert pems == [old] * 3
    assert caplog.text.count("is not used: gateway.tls_cert_file: cannot read") == 1
    clock.advance(RETRY_S)
    assert identity.pem() != old


def test_files_of_which_only_owner_or_rights_have_changed_are_tried_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    made, newer = make_certificate(tmp_path), make_certificate(tmp_path, "newer")
    identity = TlsIdentity(str(made.cert_file), str(made.key_file), ManualClock())
    old = identity.pem()
    made.cert_file.write_bytes(newer.cert_file.read_bytes())  # its key is yet to come
    with monkeypatch.context() as patch:  # and it goes while the fault is looked for
        patch.setattr(ssl, "create_default_context", lambda cafile: Path("/none").read_bytes())
        assert identity.pem() == old
    assert "is not used: gateway.tls_cert_file cannot be used" in caplog.text

    there = made.key_file.stat()
    key = newer.key_file.read_bytes()
    made.key_file.write_bytes(key + b"\n" * (there.st_size - len(key)))
    os.utime(made.key_file, ns=(there.st_atime_ns, there.st_mtime_ns))
    assert made.key_file.stat().st_size == there.st_size
    assert identity.pem()[1] == newer.cert_file.read_bytes()


async def test_who_opens_a_connection_and_shakes_no_hands_has_a_place_until_it_leaves(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = make_certificate(tmp_path)
    seen: list[Connections] = []
    opening = Connections.open

    def open_(self: Connections, address: str) -> Refusal | None:
        seen.append(self)
        return opening(self, address)

    monkeypatch.setattr(Connections, "open", open_)
    async with serving(max_connections=2, **settings_of(made)) as gateway, asyncio.timeout(120):
        port = gateway.server.http_port
        first, second, third = [await asyncio.open_connection("127.0.0.1", port) for _ in range(3)]
        assert await third[0].read() == b""  # at once, as there is no place
        for _, writer in (first, second, third):
            writer.close()
        await until(lambda: not seen[0].num_open)
        babbler = await asyncio.open_connection("127.0.0.1", port)
        babbler[1].write(b"GET / HTTP/1.1\r\n\r\n")
        await babbler[0].read()
        trust = ssl.create_default_context(cafile=made.cert_file)
        url = f"https://127.0.0.1:{port}"
        for _ in range(3):  # each leaves its place to the next
            async with httpx.AsyncClient(base_url=url, verify=trust) as http:
                assert (await http.get("/health")).status_code == 200
            await until(lambda: not seen[0].num_open)
        page = gateway.server.metrics_page()
        babbler[1].close()

    assert 'reason="too many connections"} 1\n' in page
    assert 'reason="failed handshake"} 1\n' in page


async def test_who_is_late_with_its_handshake_is_cut_off(tmp_path: Path) -> None:
    settings = settings_of(make_certificate(tmp_path))
    async with serving(header_timeout_s=0.1, **settings) as gateway, asyncio.timeout(120):
        reader, writer = await asyncio.open_connection("127.0.0.1", gateway.server.http_port)
        assert await reader.read() == b""
        page = gateway.server.metrics_page()
        writer.close()

    assert 'reason="failed handshake"} 1\n' in page


def test_without_files_nothing_is_encrypted() -> None:
    assert tls_identity(GatewayConfig()) is None


def test_a_file_that_is_missing_is_named_with_its_setting(tmp_path: Path) -> None:
    made = make_certificate(tmp_path)

    with pytest.raises(InvalidConfig, match=r"gateway\.tls_cert_file: cannot read .*none\.pem"):
        tls_identity(config_with(tmp_path / "none.pem", made.key_file))
    with pytest.raises(InvalidConfig, match=r"gateway\.tls_key_file: cannot read .*none\.key"):
        tls_identity(config_with(made.cert_file, tmp_path / "none.key"))


def test_what_is_no_certificate_is_named(tmp_path: Path) -> None:
    made = make_certificate(tmp_path)
    broken = tmp_path / "broken.pem"
    broken.write_text("no certificate")

    with pytest.raises(InvalidConfig, match=r"gateway\.tls_cert_file cannot be used"):
        tls_identity(config_with(broken, made.key_file))
    with pytest.raises(InvalidConfig, match=r"gateway\.tls_key_file cannot be used"):
        tls_identity(config_with(made.cert_file, broken))


def test_the_key_of_another_certificate_is_refused(tmp_path: Path) -> None:
    made, other = make_certificate(tmp_path), make_certificate(tmp_path, "other")

    with pytest.raises(InvalidConfig, match=r"gateway\.tls_key_file cannot be used .*MISMATCH"):
        tls_identity(config_with(made.cert_file, other.key_file))


def test_a_key_with_a_passphrase_is_refused_and_nobody_is_asked(tmp_path: Path) -> None:
    made = make_certificate(tmp_path)
    locked = tmp_path / "locked.key"
    subprocess.run(
        ["openssl", "pkcs8", "-topk8", "-in", made.key_file, "-out", locked, "-passout", "pass:x"],
        check=True,
        capture_output=True,
    )

    with pytest.raises(InvalidConfig, match="encrypted"):
        tls_identity(config_with(made.cert_file, locked))
