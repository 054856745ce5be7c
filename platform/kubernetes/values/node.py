"""What every part of the chart's values is made of."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec

from baton.core.config_node import ConfigNode

Free = dict[str, Any]
"""An object of Kubernetes' own, passed on as it is."""

Share = Annotated[int, msgspec.Meta(ge=0, le=100)]
"""Percent."""


class ChartNode(ConfigNode, frozen=True, kw_only=True, rename="camel"):
    """Refuses unknown keys; its keys are camelCase, as is usual in charts."""


class PlacedValues(ChartNode, frozen=True, kw_only=True):
    """Where a pod beside Ray's runs."""

    node_selector: dict[str, str] = msgspec.field(default_factory=dict)
    affinity: Free = msgspec.field(default_factory=dict)
    tolerations: list[Free] = msgspec.field(default_factory=list)
    topology_spread_constraints: list[Free] = msgspec.field(default_factory=list)
    priority_class_name: str = ""


class SecretRef(ChartNode, frozen=True, kw_only=True):
    """A key of a Secret that exists. Secrets never stand in values."""

    existing_secret: str = ""
    """Name of the Secret. Empty: none."""
    key: str = ""
    """Key in it."""
