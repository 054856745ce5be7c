"""Settings of batches and of their files."""

from __future__ import annotations

from baton.core.config_node import ConfigNode, Count, Fraction, Seconds

DAY_S = 86_400.0


class BatchConfig(ConfigNode, frozen=True, kw_only=True):
    """Batches: requests in files, answered with capacity that interactive requests leave."""

    max_file_bytes: Count = 200 << 20
    """The most bytes of an uploaded file; a larger one is refused (413)."""
    max_kept_bytes: Count = 1 << 30
    """The most bytes of all files of one tenant, or of one key of `gateway.api_keys`; more are
    refused (429)."""
    max_lines: Count = 50_000
    """The most lines of one batch; one with more fails."""
    max_running: Count = 32
    """Lines that one gateway answers at once, of all its batches."""
    max_beside: Count = 8
    """Lines that one gateway answers at once while it has interactive requests: each line makes
    their decode steps a little longer."""
    max_share: Fraction = 0.5
    """A line begins only while less than this share of the gateway's decode places is taken; the
    rest is kept for interactive requests."""
    max_unfinished: Count = 100
    """Batches of one tenant, or of one such key, at once; more are refused (429)."""
    takeover_s: Seconds = 15.0
    """Seconds without a heartbeat of a batch's gateway after which another gateway continues it."""
    keep_s: Seconds = 30 * DAY_S
    """Seconds that files of batches, and batches that have ended, are kept."""
