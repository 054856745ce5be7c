"""The router's defaults that the configuration needs, without importing the router, which needs
numpy.

Every command reads the configuration before it does anything, and most need no routing.
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
