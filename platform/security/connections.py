"""Loads the security of this process's connections, and reloads renewed files.

SecurityConfig (paths) --on its own node--> files, environment --> WireSecurity (what they hold)
"""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

from baton.core.errors import InvalidConfig
from baton.core.wire_security import NO_TOKEN, WireSecurity
from baton.platform.security.config import SecurityConfig
from baton.platform.security.ray_token import derived_token

log = logging.getLogger(__name__)

TOKEN_VARIABLE = "BATON_CLUSTER_TOKEN"
MIN_TOKEN_CHARS = 16

Stamp = tuple[tuple[int, int, int] | None, ...]
"""Inode, size and time of the last change of each file; None while it is away."""


def load_security(
    config: SecurityConfig,
    *,
    allows_plain_kv: bool = False,
    environment: Mapping[str, str] = os.environ,
) -> WireSecurity:
    """Raises InvalidConfig, naming the setting at fault and the remedy. An undecided
    `default_token` counts as none."""
    is_given = is_token_given(config, environment)
    defaults = () if is_given else _default_tokens(config, environment)
    given = environment.get(TOKEN_VARIABLE, "")
    security = _SecurityFiles(config, allows_plain_kv, given, defaults).current()
    if security.tokens and is_given and not security.is_encrypted:
        log.warning(
            "the cluster token travels in plain text: it keeps clusters from being mixed up, and "
            "nobody out; set security.tls_cert_file as well"
        )
    return security


def is_token_given(config: SecurityConfig, environment: Mapping[str, str] = os.environ) -> bool:
    """Whether an operator has configured a token."""
    return bool(config.token_file or environment.get(TOKEN_VARIABLE, "").strip())


class _SecurityFiles:
    """The current contents of the files. If a new file cannot be used, the last good one stays.
    Files are checked at every call and handshake, and read only when changed.
    """

    def __init__(
        self,
        config: SecurityConfig,
        allows_plain_kv: bool,
        token: str,
        default_tokens: tuple[str, ...],
    ) -> None:
        self._config = config
        self._allows_plain_kv = allows_plain_kv
        self._token = token
        self._default_tokens = default_tokens
        self._paths = [
            path
            for path in (
                config.tls_cert_file,
                config.tls_key_file,
                config.tls_ca_file,
                config.token_file,
            )
            if path
        ]
        self._stamp = self._look()
        self._current = self._load()

    def current(self) -> WireSecurity:
        stamp = self._look()
        if stamp == self._stamp:
            return self._current
        self._stamp = stamp
        try:
            self._current = self._load()
        except InvalidConfig as error:
            log.error("the renewed security files are not used: %s", error)
        else:
            log.info("the security files have been renewed")
        return self._current

    def _look(self) -> Stamp:
        return tuple(_stamp(path) for path in self._paths)

    def _load(self) -> WireSecurity:
        config = self._config
        security = WireSecurity(
            server_name=config.tls_server_name,
            checks_clients=config.require_client_cert,
            tokens=self._tokens(),
            allows_plain_kv=self._allows_plain_kv,
            renew=self.current if self._paths else None,
        )
        if not config.is_encrypted:
            return security
        from baton.platform.security.certificates import check_identity  # it takes 50 ms to import

        security = replace(
            security,
            certificate_pem=_read("security.tls_cert_file", config.tls_cert_file),
            key_pem=_read("security.tls_key_file", config.tls_key_file),
            authority_pem=_read("security.tls_ca_file", config.tls_ca_file),
        )
        check_identity(security, datetime.now(UTC))
        return security

    def _tokens(self) -> tuple[str, ...]:
        setting, text = TOKEN_VARIABLE, self._token
        if self._config.token_file:
            setting = f"security.token_file ({self._config.token_file})"
            text = _read("security.token_file", self._config.token_file).decode("utf-8", "replace")
        tokens = tuple(filter(None, map(str.strip, text.splitlines())))
        if self._config.token_file and not tokens:
            raise InvalidConfig(f"{setting} is empty; `openssl rand -hex 32` makes a token")
        if not all(token.isascii() and token.isprintable() for token in tokens):
            raise InvalidConfig(f"{setting} holds characters other than plain ASCII ones")
        if any(len(token) < MIN_TOKEN_CHARS for token in tokens):
            raise InvalidConfig(
                f"{setting} holds a token of fewer than {MIN_TOKEN_CHARS} characters, which can be "
                "guessed; `openssl rand -hex 32` makes a better one"
            )
        return tokens or self._default_tokens


def _default_tokens(config: SecurityConfig, environment: Mapping[str, str]) -> tuple[str, ...]:
    match config.default_token:
        case "ray":
            return (derived_token(environment),)
        case "permissive":
            return (NO_TOKEN, derived_token(environment))
        case _:
            return ()


def _read(setting: str, path: str) -> bytes:
    try:
        return Path(path).read_bytes()
    except OSError as error:
        raise InvalidConfig(
            f"{setting}: cannot read {path}: {error.strerror}; every node needs the file there"
        ) from error


def _stamp(path: str) -> tuple[int, int, int] | None:
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_ino, found.st_size, found.st_mtime_ns
