"""Whether one replica can use the KV of another. Decided before any byte travels."""

from __future__ import annotations

from baton.core.kv_layout import KvLayout
from baton.kv_transfer.layouts.plan import plan_streams


def check_layouts(sender: KvLayout, receiver: KvLayout) -> None:
    """Raise LayoutMismatch, naming everything that differs, if there is no plan."""
    plan_streams((sender,), (receiver,))
