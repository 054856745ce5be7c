"""What an operator may set of batches and of the files they are made of."""

from __future__ import annotations

from baton.core.config_node import ConfigNode, Count, Fraction, Seconds

DAY_S = 86_400.0


class BatchConfig(ConfigNode, frozen=True, kw_only=True):
    """Requests in files, answered when nobody else needs the replicas."""

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
    """Lines that one gateway answers at once while it has requests that somebody waits for: each
    line makes their steps a little longer."""
    max_share: Fraction = 0.5
    """The share of a gateway's decode places that may be taken when a line begins: the others are
    kept for requests that somebody waits for."""
    max_unfinished: Count = 100
    """Batches of one tenant, or of one such key, at once; more are refused (429)."""
    takeover_s: Seconds = 15.0
    """A batch of whose gateway nothing is heard for so long is gone on with by another."""
    keep_s: Seconds = 30 * DAY_S
    """How long files of batches, and batches that have ended, are kept."""
