"""The default cluster token, derived from Ray's own.

Every node of a cluster with token authentication has Ray's token, and so has anybody who may join
it. Its holders can run any code there, so access to replicas gives them nothing more. Ray's token
cannot be computed from the derived one.
"""

from __future__ import annotations

import hmac
import os
from collections.abc import Mapping
from pathlib import Path

import msgspec

from baton.core.errors import InvalidConfig
from baton.platform.security.config import SecurityConfig

PURPOSE = b"baton cluster token"
OWN_FILE = Path(".ray", "auth_token")


def settled(
    config: SecurityConfig, environment: Mapping[str, str] = os.environ, *, is_tool: bool = False
) -> SecurityConfig:
    """Resolve `auto`. For an application it is resolved once, by RAY_AUTH_MODE, since a token file
    may be another cluster's. An operator's tool (`is_tool`) has no such variable, and goes by the
    file.
    """
    if config.default_token != "auto":
        return config
    is_asked = is_tool or environment.get("RAY_AUTH_MODE", "").lower() == "token"
    found = "ray" if is_asked and ray_token(environment) else "none"
    return msgspec.structs.replace(config, default_token=found)


def derived_token(environment: Mapping[str, str]) -> str:
    """Raises InvalidConfig if Ray asks for no token here."""
    found = ray_token(environment)
    if not found:
        raise InvalidConfig(
            "security.default_token: there is no Ray token in RAY_AUTH_TOKEN, RAY_AUTH_TOKEN_PATH "
            "or ~/.ray/auth_token, or RAY_AUTH_MODE turns it off; start every node with one, or "
            "set `none`"
        )
    return hmac.digest(found.encode(), PURPOSE, "sha256").hex()


def ray_token(environment: Mapping[str, str]) -> str:
    """Ray's token as Ray itself finds it; empty if Ray uses none, or one per user."""
    mode = environment.get("RAY_AUTH_MODE", "token").lower()
    if mode != "token" or environment.get("RAY_ENABLE_K8S_TOKEN_AUTH", "0") not in ("", "0"):
        return ""
    if given := environment.get("RAY_AUTH_TOKEN", "").strip():
        return given
    named = environment.get("RAY_AUTH_TOKEN_PATH", "")
    path = Path(named) if named else Path(environment.get("HOME", "/"), OWN_FILE)
    try:
        return path.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError):
        return ""
