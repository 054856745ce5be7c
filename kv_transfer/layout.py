"""Whether two replicas store KV alike. Decided before any byte travels.

A transfer moves whole units (layer, block, head) between equal layouts. Every field counts: a
receiver that places the bytes of another layout would be silently wrong.
"""

from __future__ import annotations

from dataclasses import fields

from baton.core.errors import LayoutMismatch
from baton.core.kv_layout import KvLayout


def check_layouts(sender: KvLayout, receiver: KvLayout) -> None:
    """Raise LayoutMismatch, naming every field that differs."""
    differences = [
        f"{field.name} is {_show(getattr(sender, field.name))} at the sender, "
        f"{_show(getattr(receiver, field.name))} at the receiver"
        for field in fields(KvLayout)
        if getattr(sender, field.name) != getattr(receiver, field.name)
    ]
    if differences:
        raise LayoutMismatch("KV cannot be handed over: " + "; ".join(differences))


def _show(value: object) -> str:
    return value.hex() if isinstance(value, bytes) else str(value)
