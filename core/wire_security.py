"""Security of the connections between Baton's own processes. Default: plain text without
authentication.

certificate + key    prove this process's identity, to its clients and to the servers it calls
authority            only servers with a certificate of this authority are called
clients checked      and only clients with one are served (mutual TLS)
tokens               every call carries the first; a call with none of them is refused
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

PRIVATE_TRANSPORTS = frozenset({"memory", "shm", "grpc"})
"""Transports whose bytes stay on the machine, or in our channels, which alone are encrypted."""
NO_TOKEN = ""
"""Among tokens: calls that carry none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WireSecurity:
    authority_pem: bytes = b""
    certificate_pem: bytes = b""
    key_pem: bytes = field(default=b"", repr=False)
    server_name: str = "baton"
    """The name that every server's certificate bears, whatever address it listens on."""
    checks_clients: bool = True
    tokens: tuple[str, ...] = field(default=(), repr=False)
    """The first is sent, to who refuses it the next, and all are accepted: so one can follow
    another without a pause."""
    allows_plain_kv: bool = False
    """KV may travel unencrypted although the channels are not."""
    renew: Callable[[], WireSecurity] | None = field(default=None, repr=False, compare=False)

    @property
    def is_encrypted(self) -> bool:
        return bool(self.certificate_pem)

    def now(self) -> WireSecurity:
        """The present security, as certificates are renewed; the same object if nothing has
        changed."""
        return self if self.renew is None else self.renew()

    def may_carry_kv(self, transport: str) -> bool:
        """Whether KV may travel by `transport`: not past the encryption, unless that is allowed."""
        return not self.is_encrypted or self.allows_plain_kv or transport in PRIVATE_TRANSPORTS


PLAIN = WireSecurity()
