"""What an operator may set about a replica's handoffs. Each default stands here alone."""

from __future__ import annotations

from baton.core.config_node import ConfigNode, Count, Fraction, Seconds


class ExchangeConfig(ConfigNode, frozen=True, kw_only=True):
    """How much of a replica handoffs may hold, for how long, and whom it trusts."""

    max_leased_fraction: Fraction = 0.5
    """Share of a decode replica's blocks that handoffs under way may hold."""
    max_held_fraction: Fraction = 0.5
    """Share of a prefill replica's blocks that computed prompts may hold until decode replicas have
    fetched them. Beyond it prompts are refused at once, and computed elsewhere."""
    prefill_timeout_s: Seconds = 60.0
    """Seconds after which the decode replica computes the prompt itself."""
    max_corrupt: Count = 3
    """Bad pieces of KV within a minute after which their sender is not asked for one."""


DEFAULTS = ExchangeConfig()
