"""The gateway's TLS certificate and key.

The files' stamps are checked at every handshake, so that a renewed certificate needs no restart. If
new files cannot be used, the last good ones stay, the log says why, and loading is retried even if
the stamps stay the same, because the cause (permissions, too many open files) may not show in them.
"""

from __future__ import annotations

import logging
import math
import os
import ssl
from dataclasses import dataclass
from pathlib import Path
from threading import Lock

from baton.core.clock import Clock, monotonic
from baton.core.errors import InvalidConfig
from baton.gateway.access.config import GatewayConfig

log = logging.getLogger(__name__)

Stamp = tuple[tuple[int, int, int, int] | None, ...]
"""File stamps: inode, size, and times of the last change of content and of owner and rights; None
while the file is away."""

RETRY_S = 5.0
"""Between attempts to load files that cannot be used and do not change."""


@dataclass(frozen=True, slots=True)
class _Loaded:
    stamp: Stamp
    """The files' stamp before they were read: if they change meanwhile, the next one differs."""
    context: ssl.SSLContext
    key_pem: bytes
    certificate_pem: bytes


class TlsIdentity:
    """A certificate and a key that fit together. Thread-safe, because gRPC calls it from its own
    threads."""

    def __init__(self, cert_file: str, key_file: str, clock: Clock = monotonic) -> None:
        """Raises InvalidConfig, naming the setting that is at fault."""
        self._cert_file, self._key_file = cert_file, key_file
        self._clock = clock
        self._lock = Lock()
        self._loaded = self._load(self._look())
        self._seen = self._loaded.stamp
        self._fault = ""
        self._retry_at = math.inf

    def context(self) -> ssl.SSLContext:
        """The TLS context for a handshake that begins now."""
        return self._renewed().context

    def pem(self) -> tuple[bytes, bytes]:
        """The key and the certificate, as gRPC takes them."""
        loaded = self._renewed()
        return loaded.key_pem, loaded.certificate_pem

    def _renewed(self) -> _Loaded:
        with self._lock:
            stamp = self._look()
            if stamp != self._seen or self._clock() >= self._retry_at:
                self._seen = stamp
                self._reload(stamp)
            return self._loaded

    def _reload(self, stamp: Stamp) -> None:
        """Load the files again; keep the present ones if they cannot be used."""
        try:
            self._loaded = self._load(stamp)
        except InvalidConfig as error:
            self._retry_at = self._clock() + RETRY_S
            if str(error) != self._fault:
                log.error("the renewed certificate is not used: %s", error)
            self._fault = str(error)
        else:
            self._retry_at = math.inf
            self._fault = ""
            log.info("the certificate has been renewed: %s", self._cert_file)

    def _look(self) -> Stamp:
        return _stamp(self._cert_file), _stamp(self._key_file)

    def _load(self, stamp: Stamp) -> _Loaded:
        certificate = _read("gateway.tls_cert_file", self._cert_file)
        key = _read("gateway.tls_key_file", self._key_file)
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        try:
            # An encrypted key would ask for its passphrase on the terminal.
            context.load_cert_chain(self._cert_file, self._key_file, password=_refuse)
        except ssl.SSLError as error:
            setting = _at_fault(self._cert_file)
            raise InvalidConfig(
                f"{setting} cannot be used ({error.reason or error}); give "
                "a certificate and its own key, both in PEM"
            ) from error
        except OSError as error:
            raise InvalidConfig(
                f"gateway.tls_cert_file or tls_key_file was removed while it was read ({error}); "
                "put it back"
            ) from error
        return _Loaded(stamp, context, key, certificate)


def tls_identity(config: GatewayConfig) -> TlsIdentity | None:
    """None: no encryption. Raises InvalidConfig, naming the setting that is at fault.

    Needs no model and no port, so that `baton serve` can find mistakes before it starts anything.
    """
    if not config.tls_cert_file:
        return None
    return TlsIdentity(config.tls_cert_file, config.tls_key_file)


def _stamp(path: str) -> tuple[int, int, int, int] | None:
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns


def _read(key: str, path: str) -> bytes:
    try:
        return Path(path).read_bytes()
    except OSError as error:
        raise InvalidConfig(
            f"{key}: cannot read {path} ({error.strerror}); give a file that this process may read"
        ) from error


def _refuse() -> str:
    raise InvalidConfig("gateway.tls_key_file is encrypted; give the key without a passphrase")


def _at_fault(cert_file: str) -> str:
    """The certificate if it cannot be read on its own, else its key."""
    try:
        ssl.create_default_context(cafile=cert_file)
    except OSError:  # an SSLError is one as well; others if it went meanwhile
        return "gateway.tls_cert_file"
    return "gateway.tls_key_file"
