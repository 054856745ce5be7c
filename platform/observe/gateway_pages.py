"""A client of a gateway's admin port, for command-line tools."""

from __future__ import annotations

import ssl
from dataclasses import dataclass
from http import HTTPStatus
from http.client import HTTPException
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import msgspec

from baton.core.errors import InvalidRequest, Unavailable
from baton.gateway.access.config import GatewayConfig

TIMEOUT_S = 10.0
"""More than a gateway takes to ask a replica, which asks the registry: `replica_commands.py`."""
EVERYWHERE = ("0.0.0.0", "::")


class _Fault(msgspec.Struct):
    message: str
    code: str | None = None


class _Refusal(msgspec.Struct):
    """The gateway's error body."""

    error: _Fault


@dataclass(frozen=True, slots=True)
class GatewayPages:
    """Blocks."""

    url: str
    """http://host:port of operators"""
    api_key: str | None = None
    ca_file: Path | None = None

    def get(self, path: str) -> dict[str, Any]:
        """A page that is a JSON object. Raises Unavailable, InvalidRequest with the remedy."""
        return self._ask(path, None)

    def post(self, path: str, body: Any) -> dict[str, Any]:
        """As `get`, with POST."""
        return self._ask(path, msgspec.json.encode(body))

    def _ask(self, path: str, data: bytes | None) -> dict[str, Any]:
        headers = {"authorization": f"Bearer {self.api_key}"} if self.api_key else {}
        if data is not None:
            headers["content-type"] = "application/json"
        try:
            request = Request(f"{self.url.rstrip('/')}{path}", data=data, headers=headers)
            is_tls = self.url.startswith("https:")
            context = ssl.create_default_context(cafile=self.ca_file) if is_tls else None
            with urlopen(request, timeout=TIMEOUT_S, context=context) as response:
                return msgspec.json.decode(response.read(), type=dict[str, Any])
        except HTTPError as error:
            raise self._refusal(error) from error
        # URLError and DecodeError are such.
        except (OSError, ValueError, HTTPException) as error:
            raise Unavailable(self._reason(error)) from error

    def _refusal(self, error: HTTPError) -> Unavailable | InvalidRequest:
        if error.code == HTTPStatus.UNAUTHORIZED:
            return Unavailable(
                f"the gateway at {self.url} wants an API key; give it with --api-key or "
                "BATON_API_KEY"
            )
        try:
            said = msgspec.json.decode(error.read(), type=_Refusal)
        except ValueError:
            return Unavailable(self._reason(error))
        if said.error.code == "not_found":
            return Unavailable(
                f"{self.url} has no such page: operators are answered at gateway.admin_port (8002 "
                "by default); give that address with --url"
            )
        if error.code == HTTPStatus.FORBIDDEN:
            return Unavailable(f"{said.error.message}; give it with --api-key or BATON_API_KEY")
        if error.code == HTTPStatus.BAD_REQUEST:
            return InvalidRequest(said.error.message)
        return Unavailable(said.error.message)

    def _reason(self, error: Exception) -> str:
        if not self.url.startswith(("http://", "https://")):
            return f"{self.url!r} is no address of a gateway; --url wants http://host:port"
        is_foreign = isinstance(error, HTTPException)
        reason = "it does not speak HTTP" if is_foreign else getattr(error, "reason", error)
        return (
            f"no gateway at {self.url}: {reason}; start one with `baton serve`, or give its "
            "address with --url"
        )


def gateway_url(config: GatewayConfig, host: str, port: int) -> str:
    """The URL of a port of a gateway that listens at `host`, as this machine reaches it."""
    return f"{'https' if config.tls_cert_file else 'http'}://{_bracketed(reachable(host))}:{port}"


def reachable(host: str) -> str:
    return "localhost" if host in EVERYWHERE else host


def _bracketed(host: str) -> str:
    return f"[{host}]" if ":" in host else host
