"""The `import_path` of Ray Serve documents: builds the application from plain data.

    import_path: baton.platform.serve_app:app
    args: {model: org/name, decode: {cache: {memory_gib: 8}}}     the configuration tree

Equal args give equal applications: nothing is random, and secrets are references (`file:`, `env:`).
Live settings come with `user_config` (`platform/cluster/applications/serve_document.py`).
"""

from __future__ import annotations

from typing import Any

from ray import serve

from baton.platform.cluster.deploy import build_app
from baton.platform.config.deployment import override, parse_config
from baton.platform.security.secrets import check_named

THIS_CLUSTER = "auto"


def app(args: dict[str, Any]) -> serve.Application:
    """Raises InvalidConfig. Every node finds the model by itself."""
    config = parse_config(args)
    check_named(config.gateway)
    return build_app(override(config, {"ray.address": THIS_CLUSTER}), folder=None)
