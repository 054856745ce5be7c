"""Decides which web servers get the token.

BATON_MODEL_TOKEN_HOST=a.internal[:8443]   that server alone, by https or as the URL says
not set                                    servers that are asked by https, and this machine
"""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping
from urllib.parse import urlsplit

from baton.platform.models.origins.web import AUTHORIZATION

TOKEN_VARIABLE = "BATON_MODEL_TOKEN"
HOST_VARIABLE = "BATON_MODEL_TOKEN_HOST"
LOOPBACK = ("127.0.0.1", "::1", "localhost")

log = logging.getLogger(__name__)


def token_headers(url: str) -> Mapping[str, str]:
    """Headers for a request of the URL."""
    token = os.environ.get(TOKEN_VARIABLE, "")
    if not token:
        return {}
    if refusal := _why_not(url, os.environ.get(HOST_VARIABLE, "")):
        log.warning("%s is not sent for %s: %s", TOKEN_VARIABLE, url, refusal)
        return {}
    return {AUTHORIZATION: f"Bearer {token}"}


def _why_not(url: str, host: str) -> str:
    """Why the server may not get the token; empty if it may."""
    server = urlsplit(url)
    if host:
        is_its = host.lower() in (server.netloc.lower(), server.hostname)
        return "" if is_its else f"it is for {host} ({HOST_VARIABLE})"
    if server.scheme == "https" or server.hostname in LOOPBACK:
        return ""
    return (
        "anybody on the way could read it; use https, or allow it by naming the server in "
        f"{HOST_VARIABLE}"
    )
