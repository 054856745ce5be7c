"""A secret that all processes of an application can derive."""

from __future__ import annotations

from hashlib import blake2b

import ray


def cluster_secret(app_name: str) -> str:
    """Derived from the cluster's random id, which never leaves it: the same for every gateway of an
    application, also after restarts."""
    cluster_id, _ = ray._private.worker.global_worker.current_cluster_and_job
    return blake2b(app_name.encode(), key=cluster_id.binary(), digest_size=32).hexdigest()
