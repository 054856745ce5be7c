"""How a `KvLayout` is written as protobuf (proto/kv.proto); prefill requests carry it too."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from itertools import pairwise

from baton.core.kv_layout import DraftFeatures, KvLayout, SideCache
from baton.proto import kv_pb2 as pb

KEY_AND_VALUE = 2
"""What peers mean that do not say: they are older than latents."""


@lru_cache(maxsize=256)
def layout_to_proto(layout: KvLayout) -> pb.KvLayout:
    """The same message for the same layout, each of which has many transfers: not to be changed."""
    features = layout.features
    return pb.KvLayout(
        model_fingerprint=layout.model_fingerprint,
        dtype=layout.dtype,
        num_layers=layout.num_layers,
        num_kv_heads=layout.num_kv_heads,
        head_dim=layout.head_dim,
        block_size=layout.block_size,
        first_kv_head=layout.first_kv_head,
        num_vectors=layout.num_vectors,
        side_caches=[
            pb.SideCache(name=side.name, layers=side.layers, width=side.width, dtype=side.dtype)
            for side in layout.side_caches
        ],
        features=None
        if features is None
        else pb.DraftFeatures(kind=features.kind, width=features.width, dtype=features.dtype),
    )


def layout_from_proto(message: pb.KvLayout) -> KvLayout:
    """Raises ValueError for a dtype that this version does not know, or impossible sizes."""
    return _layout_from(message.SerializeToString())


@lru_cache(maxsize=256)
def _layout_from(data: bytes) -> KvLayout:
    """One object for equal messages: what a layout has found out about itself is found out once."""
    message = pb.KvLayout.FromString(data)
    return KvLayout(
        model_fingerprint=message.model_fingerprint,
        dtype=message.dtype,
        num_layers=message.num_layers,
        num_kv_heads=message.num_kv_heads,
        head_dim=message.head_dim,
        block_size=message.block_size,
        first_kv_head=message.first_kv_head,
        num_vectors=message.num_vectors or KEY_AND_VALUE,
        side_caches=tuple(
            SideCache(
                name=side.name,
                layers=tuple(side.layers),
                width=side.width,
                dtype=side.dtype,
            )
            for side in message.side_caches
        ),
        features=_features(message.features) if message.HasField("features") else None,
    )


def _features(message: pb.DraftFeatures) -> DraftFeatures:
    return DraftFeatures(kind=message.kind, width=message.width, dtype=message.dtype)


def head_runs_from_proto(layout: KvLayout, stops: Sequence[int]) -> tuple[range, ...]:
    """Empty for what is no split of the layout's heads: then its KV comes as a whole."""
    bounds = [layout.first_kv_head, *stops]
    runs = tuple(range(start, stop) for start, stop in pairwise(bounds))
    return runs if all(runs) and bounds[-1] == layout.stop_kv_head else ()
