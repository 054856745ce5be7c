"""What Serve is told about where gateways and replicas run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from baton.core.errors import InvalidConfig
from baton.platform.cluster.deploy import build_app
from baton.platform.config.deployment import DeploymentConfig, override, parse_config


def deployments(config: DeploymentConfig) -> dict[str, Any]:
    """Those of the application, by name."""
    gateway: Any = build_app(config, Path("/model"))._bound_deployment
    _, _, registries, *pools = gateway.init_args
    others = [bound._bound_deployment for bound in (*registries, *pools)]
    return {deployment.name: deployment for deployment in (gateway, *others)}


def test_pools_and_gateways_run_on_nodes_with_their_labels_and_on_any_where_there_are_none() -> (
    None
):
    labels = {"baton-role": "gateway"}
    changes = {
        "gateway.placement": {"labels": labels, "max_per_node": 1},
        "decode.placement.labels": {"baton-role": "in(decode,spare)"},
        "decode.parallel": {"tensor": 2},
    }

    found = deployments(override(DeploymentConfig(), changes))

    gateway, decode, prefill = (found[name] for name in ("Gateway", "Decode", "Prefill"))
    assert gateway.ray_actor_options["label_selector"] == labels
    assert gateway._replica_config.max_replicas_per_node == 1
    selectors = decode._replica_config.placement_group_bundle_label_selector
    assert selectors == [{"baton-role": "in(decode,spare)"}] * 2
    assert "label_selector" not in decode.ray_actor_options  # its bundle's
    assert "label_selector" not in prefill.ray_actor_options
    assert prefill._replica_config.max_replicas_per_node is None


def test_each_of_several_registries_is_a_deployment_of_one_replica() -> None:
    found = deployments(override(DeploymentConfig(), {"registry.replicas": 3}))

    names = ["Registry", "Registry-1", "Registry-2"]
    assert [name for name in found if name not in ("Gateway", "Decode", "Prefill")] == names
    assert [found[name].num_replicas for name in names] == [1, 1, 1]
    assert [found[name].init_args[1] for name in names] == names


def test_replicas_of_several_ranks_cannot_be_counted_by_node() -> None:
    with pytest.raises(InvalidConfig, match=r"leave it empty - at `\$\.prefill`"):
        parse_config({"prefill": {"parallel": {"tensor": 2}, "placement": {"max_per_node": 1}}})
