"""What a configuration may say of the router, known without the router itself, which brings numpy.

Every command reads the configuration before it does anything, and most ask for no routes.
"""

from __future__ import annotations

POLICY_NAMES = (
    "random",
    "round-robin",
    "least-requests",
    "least-tokens",
    "session-sticky",
    "prefix-hash",
    "longest-match",
    "sticky-until-saturated",
    "additive",
    "new-tokens-times-batch",
    "two-choice",
    "cost",
)
"""The keys of `policies/by_name.py`."""
DEFAULT_POLICY = "cost"
LOCAL_PREFILL_TOKENS = 64
