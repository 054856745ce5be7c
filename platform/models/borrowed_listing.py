"""Chooses the version to copy when only other nodes have the model."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from baton.core.errors import CheckpointError
from baton.platform.models.listing import Listing
from baton.platform.models.origins.origin import OriginUnreachable
from baton.platform.models.peers import Peer

log = logging.getLogger(__name__)


def listing_at_home(peers: Sequence[Peer]) -> Listing | None:
    """The listing of the node that owns the folder."""
    return next((peer.listing for peer in peers if peer.is_home), None)


def listing_of_most(peers: Sequence[Peer], *, wants_weights: bool) -> Listing | None:
    """The version that most nodes have copied, preferring one that is complete among them, so that
    nodes with the same peers choose the same."""
    by_version: dict[str, list[Peer]] = {}
    for peer in peers:
        by_version.setdefault(peer.listing.version, []).append(peer)
    if len(by_version) < 2:
        return peers[0].listing if peers else None
    _, _, version = max(
        (_are_whole(having, wants_weights), len(having), version)
        for version, having in by_version.items()
    )
    chosen = by_version[version][0].listing
    log.warning(
        "other nodes have %d versions of %s, and none is at home there; %s of %d nodes is taken",
        len(by_version),
        chosen.model,
        version,
        len(by_version[version]),
    )
    return chosen


def _are_whole(peers: Sequence[Peer], wants_weights: bool) -> bool:
    """Whether the peers together have every file of their version."""
    chosen = peers[0].listing.chosen(wants_weights=wants_weights)
    try:
        return all(any(peer.has(file) for peer in peers) for file in chosen)
    except (OriginUnreachable, CheckpointError) as error:
        log.warning("%s; what it has is not counted", error)
        return False
