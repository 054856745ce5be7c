"""The cluster's token where nobody has made one: derived from Ray's own.

Ray's is on every node of a cluster that asks for it, and with whoever may join it. Who has it may
run anything there, so that being served by replicas gives him nothing more. The derived one does
not lead back to it.
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
    """`auto` as what it means where this is asked. Who starts an application asks for all of its
    processes: Ray tells them that it asks for its token (RAY_AUTH_MODE), and a file that another
    cluster left behind says nothing. An operator's tool was told nothing, and has that file alone.
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
            "security.default_token: Ray's own token is not here, neither in RAY_AUTH_TOKEN nor "
            "where RAY_AUTH_TOKEN_PATH or ~/.ray/auth_token are, or RAY_AUTH_MODE turns it off; "
            "start every node with it, or set `none`"
        )
    return hmac.digest(found.encode(), PURPOSE, "sha256").hex()


def ray_token(environment: Mapping[str, str]) -> str:
    """Ray's token as Ray itself finds it; empty if it does without, or gives each of its users
    another."""
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
