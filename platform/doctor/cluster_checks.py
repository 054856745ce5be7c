"""Whether the parts of a deployment fit each other: layouts, certificates, ports. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta

from baton.core.errors import LayoutMismatch
from baton.core.ids import ReplicaId
from baton.core.kv_layout import KvLayout
from baton.core.wire_security import NO_TOKEN, WireSecurity
from baton.kv_transfer.layouts.plan import check_layouts
from baton.platform.doctor.finding import Finding, fail, ok, warn

RENEW_WITHIN = timedelta(days=14)
HANDOFF = "handoff"


def check_handoffs(
    senders: Mapping[ReplicaId, KvLayout],
    receivers: Mapping[ReplicaId, KvLayout],
    kernels: Mapping[ReplicaId, str],
) -> Finding:
    """Whether every sender's KV layout fits every receiver. `kernels`: the kernel backend of each
    replica. KV that cannot be handed over is recomputed where it is needed.
    """
    troubles: dict[str, list[str]] = {}
    for sender, theirs in senders.items():
        for receiver, ours in receivers.items():
            try:
                check_layouts(theirs, ours)
            except LayoutMismatch as error:
                troubles.setdefault(str(error), []).append(f"{sender} -> {receiver}")
    if troubles:
        seen = "; ".join(f"{', '.join(pairs)}: {text}" for text, pairs in troubles.items())
        remedy = "serve one model from one configuration, with block sizes that divide each other"
        ways = {kernels[replica] for replica in (*senders, *receivers)}
        if len(ways) > 1:
            seen += f"; kernels round unlike each other: {' | '.join(sorted(ways))}"
            remedy += "; BATON_CPU_KERNELS names a kind of CPU that all of them are (see cores)"
        return fail(HANDOFF, seen, remedy)
    kinds = {
        (layout.dtype, layout.block_size) for layout in (*senders.values(), *receivers.values())
    }
    shown = ", ".join(f"{dtype}, {size} tokens a block" for dtype, size in sorted(kinds))
    return ok(HANDOFF, f"{len(senders)} x {len(receivers)} pairs fit ({shown})")


def check_required(required: Sequence[str], lacking: Mapping[str, str]) -> Finding:
    """Checks `transfer.require` as far as possible without a peer.

    `lacking`: by transport, what this machine would need for it; empty where it has everything.
    """
    name = "transfer.require"
    if not required:
        return ok(name, "nothing: KV goes by the fastest way there is")
    troubles = [f"{way} needs {lacking[way]}" for way in required if lacking[way]]
    if len(troubles) == len(required):
        return fail(name, "; ".join(troubles), "see to it, or require something else")
    return ok(name, " or ".join(required))


def check_security(
    security: WireSecurity,
    expires_at: datetime | None,
    now: datetime,
    *,
    is_derived: bool = False,
) -> Finding:
    """`is_derived`: whether the token is derived from Ray's."""
    name = "security"
    if NO_TOKEN in security.tokens:
        remedy = "once all replicas have it, set security.default_token to auto"
        return warn(name, "a cluster token is accepted, and not asked for", remedy)
    if expires_at is None:
        if is_derived:
            return ok(name, "a token made of Ray's own; plain text, as Ray's own calls")
        if security.tokens:
            remedy = "set security.tls_cert_file as well, unless the network is your own"
            return warn(name, "a cluster token, readable on the wire: no TLS", remedy)
        return ok(
            name,
            "none here: all that reach a replica's port are served, unless Ray has a token",
        )
    kind = "mutual TLS" if security.checks_clients else "TLS"
    token = "a cluster token" if security.tokens else "no cluster token"
    seen = f"{kind}, {token}; the certificate is valid until {expires_at:%Y-%m-%d %H:%M} UTC"
    if expires_at - now < RENEW_WITHIN:
        remedy = "renew it; running processes take the new one without a restart"
        return warn(name, seen, remedy)
    return ok(name, seen)


def check_ports(troubles: Sequence[str], is_serving: bool) -> Finding:
    """`troubles`: ports that could not be bound; expected while a gateway is running."""
    if is_serving:
        return ok("ports", "not tried: a gateway is running")
    if troubles:
        return fail(
            "ports", "; ".join(troubles), "choose others with gateway.port, or end who has them"
        )
    return ok("ports", "free")
