"""Refuses web pages of other origins at the admin port; loopback does not, since browsers run
locally.

A web page can make its visitors' browsers send requests to any address. Browsers send the page's
origin (`Origin`) and the name by which they reached us (`Host`); the latter shows DNS rebinding, in
which a page's own name resolves to this machine.
"""

from __future__ import annotations

import ipaddress
from urllib.parse import urlsplit

from starlette.datastructures import Headers

from baton.core.errors import Forbidden, InvalidRequest


def check_no_web_page(headers: Headers, *, has_keys: bool) -> None:
    """Raises Forbidden, InvalidRequest. With keys, `Host` is not checked, since no page has a
    key."""
    host, origin = headers.get("host", ""), headers.get("origin")
    if origin is not None and _place(origin) != host.lower():
        raise Forbidden("the admin port refuses requests from web pages of another origin")
    if not has_keys and not _means_one_machine(host):
        raise InvalidRequest(
            "without API keys the admin port answers only to an IP address or localhost, not to "
            f"the name {host[:100]!r}; use one of those, or set gateway.operator_keys"
        )


def _place(origin: str) -> str:
    try:
        return urlsplit(origin).netloc.lower()
    except ValueError:
        return ""


def _means_one_machine(host: str) -> bool:
    """Whether the host is an address or localhost, which DNS cannot redirect."""
    try:
        name = urlsplit(f"//{host}").hostname or ""
        return name == "localhost" or ipaddress.ip_address(name) is not None
    except ValueError:
        return False
