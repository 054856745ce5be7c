"""What a browser lets the gateway's own pages do: nothing but what is named here.

No page is framed, sends forms, or asks another host; text that models or clients wrote could not
run there even if it became markup.
"""

from __future__ import annotations

from collections.abc import Mapping


def _headers(*allowed: str) -> Mapping[str, str]:
    policy = (
        "default-src 'none'",
        *allowed,
        "base-uri 'none'",
        "form-action 'none'",
        "frame-ancestors 'none'",
    )
    return {
        "content-security-policy": "; ".join(policy),
        "cross-origin-opener-policy": "same-origin",
        "cross-origin-resource-policy": "same-origin",
        "referrer-policy": "no-referrer",
        "x-content-type-options": "nosniff",
    }


WITHOUT_SCRIPTS = _headers("style-src 'unsafe-inline'")
"""Headers of pages that bring their style and need nothing else."""

WITH_OWN_SCRIPTS = _headers(
    "script-src 'self'",
    "style-src 'self'",
    "img-src 'self'",
    "connect-src 'self'",
    "require-trusted-types-for 'script'",
    "trusted-types 'none'",
)
"""Headers of pages made of several files of this gateway; none may turn a text into markup."""
