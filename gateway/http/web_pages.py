"""Keeps web pages out of the admin port, which loopback does not: a browser runs on this machine.

A page of elsewhere may have its visitors' browsers send requests to any address. Browsers tell of
what page they do so (`Origin`), and by what name they reached us (`Host`): a page whose own name
has come to mean this machine is told by that.
"""

from __future__ import annotations

import ipaddress
from urllib.parse import urlsplit

from starlette.datastructures import Headers

from baton.core.errors import Forbidden, InvalidRequest


def check_no_web_page(headers: Headers, *, has_keys: bool) -> None:
    """Raises Forbidden, InvalidRequest. With keys, names do not matter: no page has one."""
    host, origin = headers.get("host", ""), headers.get("origin")
    if origin is not None and _place(origin) != host.lower():
        raise Forbidden("the admin port answers no web pages of elsewhere")
    if not has_keys and not _means_one_machine(host):
        raise InvalidRequest(
            "where no keys are configured the admin port answers to an address or localhost alone, "
            f"not to the name {host[:100]!r}"
        )


def _place(origin: str) -> str:
    try:
        return urlsplit(origin).netloc.lower()
    except ValueError:
        return ""


def _means_one_machine(host: str) -> bool:
    """Whether nobody can have a name server say that this is us."""
    try:
        name = urlsplit(f"//{host}").hostname or ""
        return name == "localhost" or ipaddress.ip_address(name) is not None
    except ValueError:
        return False
