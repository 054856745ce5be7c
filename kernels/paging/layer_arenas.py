"""The arenas of a layer that caches more than KV per token (core/kv_layout.py: side caches).

kv                      as in any layer
side_caches[name]       [blocks][1][E][width]       E entries a block: one per token, or fewer
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True, slots=True, eq=False)
class LayerArenas:
    kv: Tensor
    side_caches: Mapping[str, Tensor]
