"""The secret that names the KV of tenants: one for all gateways of a deployment."""

from __future__ import annotations

from baton.platform.cluster.deploy import with_cache_secret
from baton.platform.config.deployment import DeploymentConfig, override


def test_a_secret_is_drawn_where_none_is_set() -> None:
    config = DeploymentConfig()

    first, second = with_cache_secret(config), with_cache_secret(config)

    assert len(first.gateway.cache_secret) == 64
    assert first.gateway.cache_secret != second.gateway.cache_secret
    assert override(first, {"gateway.cache_secret": ""}) == config


def test_the_operators_own_is_kept() -> None:
    config = override(DeploymentConfig(), {"gateway.cache_secret": "ours"})

    assert with_cache_secret(config) is config
