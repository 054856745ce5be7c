"""API keys: who may come in with one, for which tenant, and what they may ask for.

    a key of           may use the models   may set `priority`           operates the deployment
    operator_keys      yes                  to any number                yes: drain, /debug/*
    tenants.*          yes                  from its min_priority on     no
    api_keys           yes                  from min_priority on         no

With no keys at all everybody may do everything.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Mapping
from dataclasses import dataclass

from baton.core.errors import Forbidden, Unauthenticated
from baton.core.tracing import UNTRACED, TracedCall
from baton.gateway.access.config import GatewayConfig

SCHEME = "bearer "


@dataclass(frozen=True, slots=True, kw_only=True)
class Caller:
    """Whoever sent a request, as far as its key tells; by default one who may do everything."""

    tenant: str = ""
    """Empty: nobody's in particular."""
    min_priority: int | None = None
    """The smallest number that it may give as `priority`: smaller comes first. None: any."""
    is_operator: bool = True
    owner: str = ""
    """Who else may see what came of its requests: whoever has the same."""
    max_wait_s: float | None = None
    """Its requests would rather be refused than wait longer for a place. None: as the gateway says,
    here as below."""
    time_limit_s: float | None = None
    """Of each of its requests."""
    call: TracedCall = UNTRACED
    """The call it makes, for the spans of what that begins."""

    def priority(self, asked: int | None, field: str) -> int:
        """The priority of a request that asks for `asked`. Raises Forbidden."""
        least = self.min_priority
        if asked is None:
            return max(0, least or 0)
        if least is not None and asked < least:
            owner = f"gateway.tenants.{self.tenant}" if self.tenant else "gateway"
            raise Forbidden(
                f"{field} must be at least {least} with this API key; got {asked}. Smaller ones "
                f"need a key of gateway.operator_keys, or a smaller {owner}.min_priority",
                field=field,
            )
        return asked

    def check_operates(self, what: str) -> None:
        """Raises Forbidden."""
        if not self.is_operator:
            raise Forbidden(f"{what} needs an operator's API key, one of gateway.operator_keys")


ANYBODY = Caller()
"""Where no keys are configured."""


def callers(config: GatewayConfig) -> dict[str, Caller]:
    """By key."""
    found = {key: Caller() for key in config.operator_keys}
    for key in config.api_keys:
        digest = hashlib.sha256(key.encode()).hexdigest()
        found[key] = Caller(
            min_priority=config.min_priority, is_operator=False, owner=f"key {digest}"
        )
    for name, tenant in config.tenants.items():
        least = config.min_priority if tenant.min_priority is None else tenant.min_priority
        caller = Caller(
            tenant=name,
            min_priority=least,
            is_operator=False,
            owner=f"tenant {name}",
            max_wait_s=tenant.max_wait_s,
            time_limit_s=tenant.request_timeout_s,
        )
        found |= dict.fromkeys(tenant.api_keys, caller)
    return found


class ApiKeys:
    def __init__(self, caller_by_key: Mapping[str, Caller]) -> None:
        self._caller_by_key = {key.encode(): caller for key, caller in caller_by_key.items()}

    def __bool__(self) -> bool:
        """Whether a key is asked for."""
        return bool(self._caller_by_key)

    def check(self, authorization: str | None) -> Caller:
        """The caller whose key it is. `authorization` is `Bearer <key>`. Raises Unauthenticated."""
        if not self._caller_by_key:
            return ANYBODY
        if authorization is None or not authorization.lower().startswith(SCHEME):
            raise Unauthenticated("send an API key: `Authorization: Bearer <key>`")
        given = authorization[len(SCHEME) :].strip().encode()
        # Every key is compared, and each in constant time, so that timing tells nothing.
        matching = [key for key in self._caller_by_key if hmac.compare_digest(given, key)]
        if not matching:
            raise Unauthenticated("this API key is not known here")
        return self._caller_by_key[matching[0]]
