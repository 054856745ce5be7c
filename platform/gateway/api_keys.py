"""Who may come in."""

from __future__ import annotations

import hmac
from collections.abc import Iterable

from baton.core.errors import Unauthenticated

SCHEME = "bearer "


class ApiKeys:
    """With no keys, everybody may."""

    def __init__(self, keys: Iterable[str]) -> None:
        self._keys = [key.encode() for key in keys]

    def check(self, authorization: str | None) -> None:
        """`authorization` is `Bearer <key>`. Raises Unauthenticated."""
        if not self._keys:
            return
        if authorization is None or not authorization.lower().startswith(SCHEME):
            raise Unauthenticated("send an API key: `Authorization: Bearer <key>`")
        given = authorization[len(SCHEME) :].strip().encode()
        # Every key is compared, and each in constant time, so that timing tells nothing.
        if not sum(hmac.compare_digest(given, key) for key in self._keys):
            raise Unauthenticated("this API key is not known here")
