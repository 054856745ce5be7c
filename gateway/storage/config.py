"""What an operator may set of it."""

from __future__ import annotations

from baton.core.config_node import ConfigNode, NonNegative, Seconds

DAY_S = 86_400.0
GIBIBYTE = 1 << 30


class StorageConfig(ConfigNode, frozen=True, kw_only=True):
    """What clients let Baton keep for them: responses, files, batches."""

    folder: str = ""
    """Where it is kept. Gateways on several nodes need a folder that all of them share; otherwise
    each finds what gateways of its own node kept. Empty: a folder of the node, of this model's
    name, below the user's cache."""
    max_bytes: NonNegative = 4 * GIBIBYTE
    """The most bytes of all that is kept. The oldest responses make room for new ones, first
    those of who has most; nothing else does. 0: nothing is kept."""
    response_ttl_s: Seconds = 30 * DAY_S
    """How long a response is kept."""
