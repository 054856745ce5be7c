"""Security headers of the gateway's own pages: all is forbidden but what is named here.

Pages cannot be framed, send forms, or contact other hosts; text of models or clients could not run
even if it became markup.
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
"""Headers of pages with inline style and no scripts."""

WITH_OWN_SCRIPTS = _headers(
    "script-src 'self'",
    "style-src 'self'",
    "img-src 'self'",
    "connect-src 'self'",
    "require-trusted-types-for 'script'",
    "trusted-types 'none'",
)
"""Headers of pages with scripts of this gateway, which may not turn text into markup."""
