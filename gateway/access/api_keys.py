"""API keys: who may come in with one, for which tenant, and what they may ask for.

    a key of           may use the models   may set `priority`           operates the deployment
    operator_keys      yes                  to any number                yes: drain, /debug/*
    tenants.*          yes                  from its min_priority on     no
    api_keys           yes                  from min_priority on         no

With no keys at all everybody may do everything. Each may stand there as its hash, with an end,
with fewer scopes and for some models alone (`key_entry.py`); a tenant may have models, too.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from baton.core.errors import Forbidden, Unauthenticated
from baton.core.messages import ParkedStream
from baton.core.parking import Parking
from baton.core.tracing import UNTRACED, TracedCall
from baton.gateway.access.config import GatewayConfig
from baton.gateway.access.key_entry import (
    ADMIN,
    INFERENCE,
    METRICS,
    SCOPES,
    TENANT_SCOPES,
    KeyEntry,
    digest_of,
    read_entry,
)
from baton.router.fairness.slo import NO_SLO, Slo

SCHEME = "bearer "
ANTHROPICS_HEADER = "x-api-key"
BACKGROUND = (1 << 31) - 1
"""The priority of what nobody waits for: no other request waits because of it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Caller:
    """Whoever sent a request, as far as its key tells; by default one who may do everything."""

    tenant: str = ""
    """Empty: nobody's in particular."""
    min_priority: int | None = None
    """The smallest number that it may give as `priority`: smaller comes first. None: any."""
    is_operator: bool = True
    may_infer: bool = True
    """Use the models."""
    models: tuple[frozenset[str], ...] = ()
    """The only ones that it may use have a name in each of these: its tenant's, and its key's."""
    may_watch: bool = True
    """Read the metrics, as an operator may."""
    key: str = ""
    """Which key it has, for the log: nothing that lets anybody in."""
    owner: str = ""
    """The owner id of its requests: callers with the same one may see what came of them."""
    max_wait_s: float | None = None
    """Its requests would rather be refused than wait longer for a place. None: as the gateway says,
    here as below."""
    time_limit_s: float | None = None
    """The most seconds that each of its requests may take; None: gateway.request_timeout_s."""
    call: TracedCall = UNTRACED
    """The call it makes, for the spans of what that begins."""
    parking: Parking | None = None
    """Its stream is to be found again when this gateway is gone."""
    parked: ParkedStream | None = None
    """The stream that it comes back for, if that began at another gateway."""
    slo: Slo = NO_SLO
    """The objective of the requests of this call."""
    is_background: bool = False
    """Nobody waits for its requests: they have the priority BACKGROUND, whatever they ask for."""

    @property
    def may_be_urgent(self) -> bool:
        """Whether it may ask to go before those who ask for nothing."""
        return self.min_priority is None or self.min_priority < 0

    def priority(self, asked: int | None, field: str) -> int:
        """The priority of a request that asks for `asked`. Raises Forbidden."""
        if self.is_background:
            return BACKGROUND
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

    def check_watches(self) -> None:
        """Raises Forbidden."""
        if not (self.is_operator or self.may_watch):
            raise Forbidden(
                "/metrics needs a key of gateway.operator_keys, of scope admin or metrics"
            )

    def check_infers(self) -> None:
        """Raises Forbidden."""
        if not self.may_infer:
            raise Forbidden("this API key may not use the models: its scopes are without inference")

    def usable(self, names: Sequence[str]) -> tuple[str, ...]:
        """The names of one model by which it may ask for it. Whoever may use the model by its
        own name, the first, may by its aliases, too."""
        return tuple(
            name
            for name in names
            if all(name in allowed or names[0] in allowed for allowed in self.models)
        )


ANYBODY = Caller()
"""The caller where no keys are configured."""


@dataclass(frozen=True, slots=True)
class KnownKey:
    entry: KeyEntry
    caller: Caller
    owner_models: tuple[frozenset[str], ...]
    """As `Caller.models`, of every key of its owner."""


def known_keys(config: GatewayConfig) -> list[KnownKey]:
    """All that are configured. Raises ValueError for a line that cannot be read."""
    found = [_known(line, SCOPES, Caller()) for line in config.operator_keys]
    for line in config.api_keys:
        common = Caller(min_priority=config.min_priority, is_operator=False)
        key = _known(line, TENANT_SCOPES, common)
        owner = f"key {key.entry.digest.hex()}"
        caller = replace(key.caller, owner=owner)
        found.append(replace(key, caller=caller, owner_models=caller.models))
    for name, tenant in config.tenants.items():
        least = config.min_priority if tenant.min_priority is None else tenant.min_priority
        caller = Caller(
            tenant=name,
            min_priority=least,
            is_operator=False,
            owner=f"tenant {name}",
            models=(tenant.models,) if tenant.models else (),
            max_wait_s=tenant.max_wait_s,
            time_limit_s=tenant.request_timeout_s,
        )
        found += [_known(line, TENANT_SCOPES, caller) for line in tenant.api_keys]
    return found


def _known(line: str, scopes: frozenset[str], caller: Caller) -> KnownKey:
    entry = read_entry(line, scopes)
    narrowed = replace(
        caller,
        key=entry.name,
        is_operator=caller.is_operator and ADMIN in entry.scopes,
        may_infer=INFERENCE in entry.scopes,
        may_watch=METRICS in entry.scopes,
        models=(*caller.models, entry.models) if entry.models else caller.models,
    )
    return KnownKey(entry, narrowed, caller.models)


def shown_key(headers: Mapping[str, str]) -> str | None:
    """What HTTP headers, by names in lower case, have of a key, as `Bearer <key>`."""
    authorization, key = headers.get("authorization"), headers.get(ANTHROPICS_HEADER)
    is_bearer = authorization is not None and authorization.lower().startswith(SCHEME)
    return f"Bearer {key}" if key and not is_bearer else authorization


class ApiKeys:
    def __init__(
        self, known: Sequence[KnownKey], *, unix_time: Callable[[], float] = time.time
    ) -> None:
        """The keys themselves are not kept, only their digests."""
        self._key_by_digest = {key.entry.digest: key for key in known}
        self._unix_time = unix_time
        self.num_owners = len({key.caller.owner for key in known})
        """How many there are who do not see each other's requests."""

    def __bool__(self) -> bool:
        """Whether a key is asked for."""
        return bool(self._key_by_digest)

    def check(self, authorization: str | None) -> Caller:
        """The caller whose key it is. `authorization` is `Bearer <key>`. Raises Unauthenticated."""
        if not self._key_by_digest:
            return ANYBODY
        if authorization is None or not authorization.lower().startswith(SCHEME):
            raise Unauthenticated(
                "send an API key: `Authorization: Bearer <key>`, or `x-api-key: <key>` over HTTP"
            )
        # Found by its hash: how long that takes tells nothing of the keys that are known.
        known = self._key_by_digest.get(digest_of(authorization[len(SCHEME) :].strip()))
        if known is None or not known.entry.is_valid(self._unix_time()):
            raise Unauthenticated("this API key is not known here, or has expired")
        return known.caller

    def caller_of(self, owner: str, models: tuple[frozenset[str], ...] = ()) -> Caller | None:
        """One whose requests are `owner`'s, to do what a caller with these `models` asked for
        earlier. None: nobody of that name may use the models any more."""
        if not owner:
            return replace(ANYBODY, models=models)
        now = self._unix_time()
        for known in self._key_by_digest.values():
            caller = known.caller
            if caller.owner == owner and caller.may_infer and known.entry.is_valid(now):
                return replace(caller, models=(*known.owner_models, *models))
        return None
