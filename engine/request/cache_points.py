"""Pins the prefixes that requests ask to keep (cache points) once they are computed, and gives
metrics of all pins."""

from __future__ import annotations

from baton.core.wording import count_of
from baton.engine.blocks.block_pool import BlockPool
from baton.engine.request.request import Request


def pin_computed(request: Request, pool: BlockPool) -> None:
    """Pin the cache points that `request` has passed; its blocks must be committed."""
    while request.cache_points and request.cache_points[0].num_tokens <= request.num_computed:
        point = request.cache_points.pop(0)
        pinned = pool.pin(request.holder, point.num_tokens, point.ttl_s)
        num_tokens = pinned.num_blocks * pool.layout.block_size
        request.num_pinned = max(request.num_pinned, num_tokens)
        if point.num_tokens - num_tokens >= pool.layout.block_size:
            request.cache_notes.append(
                f"cache point: kept {num_tokens} of {point.num_tokens} tokens; "
                "cache.pinned_fraction allows no more"
                if pool.is_prefix_caching
                else "cache point: nothing is kept, as prefix caching is off"
            )
        if pinned.num_displaced:
            request.cache_notes.append(
                f"cache point: {count_of(pinned.num_displaced, 'older one')} gave way to it"
            )


def cache_metrics(pool: BlockPool) -> dict[str, float]:
    """Metrics by Prometheus name: a replica's pins and the blocks that each tenant holds."""
    pins = pool.supply.counters
    held = pool.accounts.num_held_by_tenant.copy()  # the engine's thread goes on meanwhile
    return {
        "kv_blocks_pinned": pool.prefixes.pins.num_names,
        "cache_pins_made_total": pins.num_pinned,
        "cache_pins_expired_total": pins.num_expired,
        "cache_pins_displaced_total": pins.num_displaced,
        "cache_pins_evicted_total": pins.num_evicted,
        **{f"kv_blocks_held{{tenant={_quoted(tenant)}}}": num for tenant, num in held.items()},
    }


def _quoted(text: str) -> str:
    """A label's value, escaped for Prometheus."""
    escaped = text.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")
    return f'"{escaped}"'
