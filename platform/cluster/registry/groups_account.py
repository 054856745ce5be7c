"""Fetches the state of the worker-group adapter on demand."""

from __future__ import annotations

import json
import urllib.request
from typing import Any

TIMEOUT_S = 2.0
"""Timeout in seconds, less than a gateway's for the registry."""
MAX_BYTES = 1 << 20
EXPLAIN = "/explain"


def groups_account(url: str) -> dict[str, Any]:
    """The page of `baton k8s follow`, or the reason why it is unknown under `trouble`. Blocks."""
    if not url:
        return {"trouble": "set planner.groups_url to where `baton k8s follow` listens"}
    try:
        with urllib.request.urlopen(url.rstrip("/") + EXPLAIN, timeout=TIMEOUT_S) as answer:
            told = json.loads(answer.read(MAX_BYTES))
    except (OSError, ValueError) as error:  # away, too slow, too long, or malformed
        return {"trouble": f"`baton k8s follow` does not answer at {url} ({error})"}
    return told if isinstance(told, dict) else {"trouble": f"{url} is not `baton k8s follow`"}
