"""Whether a replica of one pool can serve in the role of the other with its present engine.

The engine keeps its KV layout, its block pool, its passes and its ranks, so both pools must be
configured alike in these.
"""

from __future__ import annotations

from typing import Any

import msgspec

from baton.core.errors import InvalidConfig
from baton.platform.config.deployment import DeploymentConfig

OF_ENGINES = ("parallel", "cache", "scheduler")
"""The branches of a pool that its engines are made of."""


def check_flip(config: DeploymentConfig) -> None:
    """Raises InvalidConfig, naming the setting that prevents a flip, and the remedy."""
    for branch in OF_ENGINES:
        prefill, decode = (_plain(getattr(p, branch)) for p in (config.prefill, config.decode))
        for key, value in prefill.items():
            if value != decode[key]:
                raise InvalidConfig(
                    f"prefill.{branch}.{key} is {_shown(value)} and decode.{branch}.{key} is "
                    f"{_shown(decode[key])}: a replica that is flipped keeps its engine; give "
                    "both pools the same value, and deploy again"
                )
    if config.decode.parallel.data > 1:
        raise InvalidConfig(
            f"decode.parallel.data is {config.decode.parallel.data}: engines that run their "
            "passes together cannot change role; deploy with 1 to flip replicas"
        )
    speculation = config.decode.speculation
    if speculation.method != "off" and not speculation.looks_up:
        raise InvalidConfig(
            f"decode.speculation.method is {speculation.method}: prefill replicas load no draft "
            "model or head; deploy with off, suffix, ngram or lookahead to flip replicas"
        )


def _plain(branch: Any) -> dict[str, Any]:
    found: dict[str, Any] = msgspec.to_builtins(branch)
    return found


def _shown(value: Any) -> str:
    return "empty" if value is None else str(value)
