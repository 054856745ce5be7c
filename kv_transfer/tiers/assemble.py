"""A stack of tiers from what an operator has set."""

from __future__ import annotations

from pathlib import Path

from baton.core.chaos import Chaos
from baton.core.kv_layout import KvLayout
from baton.kv_transfer.tiers.config import GIB, TiersConfig
from baton.kv_transfer.tiers.media.base import Tier
from baton.kv_transfer.tiers.media.chaotic import ChaoticTier
from baton.kv_transfer.tiers.media.disk import DiskTier
from baton.kv_transfer.tiers.media.host import HostTier
from baton.kv_transfer.tiers.media.record import RecordFormat
from baton.kv_transfer.tiers.media.store import StoreTier
from baton.kv_transfer.tiers.stack import TierStack


def create_stack(
    config: TiersConfig, layout: KvLayout, chaos: Chaos | None = None
) -> TierStack | None:
    """None if no tier is on. Raises InvalidConfig for a store that cannot be opened."""
    if not config.is_on:
        return None
    format_, tiers = RecordFormat(layout), list[Tier]()
    if config.host.gib:
        tiers.append(HostTier(format_, int(config.host.gib * GIB)))
    if config.disk.folder:
        folder = Path(config.disk.folder).expanduser()
        capacity = int(config.disk.gib * GIB)
        tiers.append(DiskTier(format_, folder, capacity, fsync=config.disk.fsync))
    if config.store.url:
        limit = int(config.store.gib * GIB) or None
        tiers.append(StoreTier(format_, config.store.url, limit))
    return TierStack(
        format_,
        tiers if chaos is None else [ChaoticTier(tier, chaos) for tier in tiers],
        max_queued_blocks=config.max_queued_blocks,
        write_through=("store",) if config.store.is_write_through else (),
    )
