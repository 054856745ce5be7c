"""Reads gateways' secrets that the configuration gives by reference.

    file:/etc/baton/keys     the file's content: one key or hash per line, where several are allowed
    env:KEYS                 the variable's content: the same, or keys separated by commas

Lines that begin with # are comments. Ray stores and shows actor arguments, so a deployment on a
cluster must give secrets by reference. Gateways check the files for changes periodically.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TypeVar

import msgspec

from baton.core.errors import InvalidConfig
from baton.gateway.access.config import GatewayConfig, TenantConfig
from baton.gateway.access.key_entry import HASHED

FILE, ENV = "file:", "env:"


def with_secrets(config: GatewayConfig) -> GatewayConfig:
    """`config` with references replaced by secrets. Raises InvalidConfig."""
    tenants = {
        name: _replaced(tenant, api_keys=_keys(f"gateway.tenants.{name}.api_keys", tenant.api_keys))
        for name, tenant in config.tenants.items()
    }
    return _replaced(
        config,
        api_keys=_keys("gateway.api_keys", config.api_keys),
        operator_keys=_keys("gateway.operator_keys", config.operator_keys),
        cache_secret=_one("gateway.cache_secret", config.cache_secret),
        tenants=tenants,
    )


def with_secrets_of(
    config: GatewayConfig, former: GatewayConfig, known: GatewayConfig
) -> GatewayConfig | None:
    """`config` with the secrets that `known` has for the references in `former`; None if it has
    other references.
    """
    if set(_secrets(config)) != set(_secrets(former)):
        return None
    tenants = {
        name: _replaced(tenant, api_keys=known.tenants[name].api_keys)
        for name, tenant in config.tenants.items()
    }
    return _replaced(
        config,
        api_keys=known.api_keys,
        operator_keys=known.operator_keys,
        cache_secret=known.cache_secret,
        tenants=tenants,
    )


def names_any(config: GatewayConfig) -> bool:
    """Whether a secret is given by reference."""
    return any(_is_name(value) for _, value in _secrets(config))


def check_named(config: GatewayConfig) -> None:
    """Raises InvalidConfig for a secret in plain text."""
    for setting, value in _secrets(config):
        if not (_is_name(value) or value.startswith(HASHED)):
            raise InvalidConfig(
                f"{setting}: Ray would store this secret and show it; give `file:/path` or "
                "`env:NAME` instead, which is read where gateways run"
            )


def _secrets(config: GatewayConfig) -> Iterator[tuple[str, str]]:
    keys: list[tuple[str, Iterable[str]]] = [
        ("gateway.api_keys", config.api_keys),
        ("gateway.operator_keys", config.operator_keys),
        ("gateway.cache_secret", filter(None, [config.cache_secret])),
    ]
    for name, tenant in config.tenants.items():
        keys.append((f"gateway.tenants.{name}.api_keys", tenant.api_keys))
    for setting, values in keys:
        for value in values:
            yield setting, value


def _keys(setting: str, values: Iterable[str]) -> frozenset[str]:
    return frozenset(key for value in values for key in _read(setting, value))


def _one(setting: str, value: str) -> str:
    return value if not _is_name(value) else " ".join(_read(setting, value))


def _is_name(value: str) -> bool:
    return value.startswith((FILE, ENV))


def _read(setting: str, value: str) -> list[str]:
    """The referenced secret, or the secret itself."""
    if not _is_name(value):
        return [value]
    if value.startswith(FILE):
        try:
            path = Path(value.removeprefix(FILE)).expanduser()
            found = _without_comments(path.read_text(encoding="utf-8-sig"))
        except (OSError, UnicodeDecodeError) as error:
            raise InvalidConfig(f"{setting}: cannot read {value}: {error}") from None
    else:
        lines = _without_comments(os.environ.get(value.removeprefix(ENV), ""))
        found = [part for line in lines for part in line.split(",")]
    secrets = [text.strip() for text in found if text.strip()]
    if not secrets:
        raise InvalidConfig(f"{setting}: {value} is empty where this gateway runs")
    if any(map(_is_name, secrets)):
        raise InvalidConfig(
            f"{setting}: {value} holds the name of another secret; give that name in {setting}"
        )
    return secrets


def _without_comments(text: str) -> list[str]:
    return [line for line in map(str.strip, text.splitlines()) if not line.startswith("#")]


R = TypeVar("R", GatewayConfig, TenantConfig)


def _replaced(config: R, **fields: object) -> R:
    """Raises InvalidConfig if the result is invalid, such as a duplicate key."""
    try:
        return msgspec.structs.replace(config, **fields)
    except ValueError as error:
        raise InvalidConfig(f"gateway: {error}") from None
