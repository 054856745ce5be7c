"""API keys: the tenant each belongs to, and what its requests may do.

    a key of           may use the models   may set `priority`           operates the deployment
    operator_keys      yes                  to any number                yes: drain, /debug/*
    tenants.*          yes                  from its min_priority on     no
    api_keys           yes                  from min_priority on         no

Without any key configured, every caller may do everything. A key may be given as its hash, with an
expiry, fewer scopes and a list of models (`key_entry.py`); a tenant may have such a list, too.
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
"""The priority of background requests: no other request waits for one of these."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Caller:
    """The sender of a request, as its API key describes it. By default it may do everything."""

    tenant: str = ""
    """The tenant's name. Empty: no tenant."""
    min_priority: int | None = None
    """The smallest `priority` that its requests may ask for; smaller is served first. None: any."""
    is_operator: bool = True
    may_infer: bool = True
    """Use the models."""
    models: tuple[frozenset[str], ...] = ()
    """Allow-lists of model names, its tenant's and its key's: a model must be in each of them."""
    may_watch: bool = True
    """Read the metrics, as an operator may."""
    key: str = ""
    """The key's name for the log, or the beginning of its hash; never the key itself."""
    owner: str = ""
    """The owner id of its requests: callers with the same id may read their results."""
    max_wait_s: float | None = None
    """A request that would wait longer for a place is refused. None: the gateway's setting, here as
    below."""
    time_limit_s: float | None = None
    """The most seconds that each of its requests may take; None: gateway.request_timeout_s."""
    call: TracedCall = UNTRACED
    """The traced call: parent of the spans that its requests begin."""
    parking: Parking | None = None
    """Set: its stream can be resumed at another gateway when this one is gone."""
    parked: ParkedStream | None = None
    """The stream that it resumes, if that began at another gateway."""
    slo: Slo = NO_SLO
    """The objective of the requests of this call."""
    is_background: bool = False
    """Its requests run in the background, with the priority BACKGROUND whatever they ask for."""

    @property
    def may_be_urgent(self) -> bool:
        """Whether it may ask for a priority below 0, the default."""
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
                f"{field} must be at least {least} with this API key; got {asked}. A smaller "
                f"value needs a key of gateway.operator_keys, or a smaller {owner}.min_priority",
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
            raise Forbidden(
                "this API key may not use the models: its scopes do not include inference"
            )

    def usable(self, names: Sequence[str]) -> tuple[str, ...]:
        """The subset of a model's `names` that it may use. Access to the first, its own name,
        includes all aliases."""
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
    """Allow-lists as in `Caller.models`, one entry for each key of the same owner."""


def known_keys(config: GatewayConfig) -> list[KnownKey]:
    """All configured keys. Raises ValueError for a line that cannot be read."""
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
    """The API key in HTTP headers (names in lower case), written as `Bearer <key>`."""
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
        """The number of owners: groups of callers that cannot see each other's requests."""

    def __bool__(self) -> bool:
        """Whether callers need a key."""
        return bool(self._key_by_digest)

    def check(self, authorization: str | None) -> Caller:
        """The caller whose key it is. `authorization` is `Bearer <key>`. Raises Unauthenticated."""
        if not self._key_by_digest:
            return ANYBODY
        if authorization is None or not authorization.lower().startswith(SCHEME):
            raise Unauthenticated(
                "send an API key: `Authorization: Bearer <key>`, or `x-api-key: <key>` over HTTP"
            )
        # Looked up by hash, so that the time it takes reveals nothing about the known keys.
        known = self._key_by_digest.get(digest_of(authorization[len(SCHEME) :].strip()))
        if known is None or not known.entry.is_valid(self._unix_time()):
            raise Unauthenticated("this API key is not known here, or has expired")
        return known.caller

    def caller_of(self, owner: str, models: tuple[frozenset[str], ...] = ()) -> Caller | None:
        """The caller for work that `owner` asked for earlier, with these `models`. None: no key of
        that owner may use the models any more."""
        if not owner:
            return replace(ANYBODY, models=models)
        now = self._unix_time()
        for known in self._key_by_digest.values():
            caller = known.caller
            if caller.owner == owner and caller.may_infer and known.entry.is_valid(now):
                return replace(caller, models=(*known.owner_models, *models))
        return None
