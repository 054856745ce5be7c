"""What `import_path` names in a document of Ray Serve: the application, built from plain data.

    import_path: baton.platform.serve_app:app
    args: {model: org/name, decode: {cache: {memory_gib: 8}}}     the configuration tree

The same of equal args: nothing is drawn, and secrets are only named (`file:`, `env:`). What
running replicas are told in place comes with `user_config`
(`platform/cluster/applications/serve_document.py`).
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
