"""Who may come in, and for whom."""

from __future__ import annotations

import hmac
from collections.abc import Iterable, Mapping

from baton.core.errors import Unauthenticated

SCHEME = "bearer "


class ApiKeys:
    """With no keys at all, everybody may. Tenants have keys of their own."""

    def __init__(
        self, keys: Iterable[str], keys_by_tenant: Mapping[str, Iterable[str]] | None = None
    ) -> None:
        self._tenant_by_key = {key.encode(): "" for key in keys}
        for tenant, own_keys in (keys_by_tenant or {}).items():
            self._tenant_by_key |= {key.encode(): tenant for key in own_keys}

    def __bool__(self) -> bool:
        """Whether a key is asked for."""
        return bool(self._tenant_by_key)

    def check(self, authorization: str | None) -> str:
        """The tenant whose key it is; empty if the key is nobody's in particular.

        `authorization` is `Bearer <key>`. Raises Unauthenticated.
        """
        if not self._tenant_by_key:
            return ""
        if authorization is None or not authorization.lower().startswith(SCHEME):
            raise Unauthenticated("send an API key: `Authorization: Bearer <key>`")
        given = authorization[len(SCHEME) :].strip().encode()
        # Every key is compared, and each in constant time, so that timing tells nothing.
        matching = [key for key in self._tenant_by_key if hmac.compare_digest(given, key)]
        if not matching:
            raise Unauthenticated("this API key is not known here")
        return self._tenant_by_key[matching[0]]
