"""Settings of a replica's handoffs."""

from __future__ import annotations

from baton.core.config_node import ConfigNode, Count, Fraction, Seconds


class ExchangeConfig(ConfigNode, frozen=True, kw_only=True):
    """Limits of handoffs: blocks, time, corrupt pieces."""

    max_leased_fraction: Fraction = 0.5
    """Share of a decode replica's blocks that running handoffs may hold."""
    max_held_fraction: Fraction = 0.5
    """Share of a prefill replica's blocks that computed prompts may hold until decode replicas have
    fetched them. Beyond it, new prompts are refused at once, and computed elsewhere."""
    prefill_timeout_s: Seconds = 60.0
    """Seconds after which the decode replica computes the prompt itself."""
    max_corrupt: Count = 3
    """Corrupt pieces of KV within a minute after which their sender is avoided for a minute."""


DEFAULTS = ExchangeConfig()
