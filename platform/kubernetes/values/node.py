"""Base types of the chart's values."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec

from baton.core.config_node import ConfigNode

Free = dict[str, Any]
"""An object of Kubernetes' own, passed on as it is."""

Share = Annotated[int, msgspec.Meta(ge=0, le=100)]
"""Percent."""


class ChartNode(ConfigNode, frozen=True, kw_only=True, rename="camel"):
    """A node of the values tree: unknown keys are refused, keys are camelCase."""


class PlacedValues(ChartNode, frozen=True, kw_only=True):
    """Scheduling of a pod that is not Ray's."""

    node_selector: dict[str, str] = msgspec.field(default_factory=dict)
    affinity: Free = msgspec.field(default_factory=dict)
    tolerations: list[Free] = msgspec.field(default_factory=list)
    topology_spread_constraints: list[Free] = msgspec.field(default_factory=list)
    priority_class_name: str = ""


class SecretRef(ChartNode, frozen=True, kw_only=True):
    """A key of an existing Secret. Values never contain secrets."""

    existing_secret: str = ""
    """Name of the Secret. Empty: none."""
    key: str = ""
    """Key in it."""
