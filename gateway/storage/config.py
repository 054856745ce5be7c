"""Settings of the storage."""

from __future__ import annotations

from baton.core.config_node import ConfigNode, NonNegative, Seconds

DAY_S = 86_400.0
GIBIBYTE = 1 << 30


class StorageConfig(ConfigNode, frozen=True, kw_only=True):
    """Storage for clients' responses, files and batches."""

    folder: str = ""
    """The folder. Gateways on several nodes need one that all of them share; otherwise each finds
    only the values of its own node. Empty: a folder with the model's name in the user's cache
    directory of each node."""
    max_bytes: NonNegative = 4 * GIBIBYTE
    """The most bytes of all values. When full, the oldest responses of the owner with the most are
    dropped; files and batches never are. 0: nothing is stored."""
    response_ttl_s: Seconds = 30 * DAY_S
    """Seconds that a response is kept."""
