"""Attention to a window of tokens and to compressed entries of the context before it (DeepSeek V4).

    r = norm(W_qa x)        q = rope(unit norm(W_qb r))                          [T, N, H]
    kv = rope(norm(W_kv x))                 both key and value, for all heads    [T, H]
    entries                                 engine/layers/compressor.py, in layers with compression
    out = W_b (W_a rope back(attention))    W_a: groups of heads, each by itself

A layer reads all entries, or those chosen by an index with its own narrower entries, whose keys are
compared with queries from r (kernels/latent_attention/compressed_attention.py).

    arena of the layer      kv          [blocks][1][S][H]
                            side caches [blocks][1][S][row]     kernels/cache_write/compress.py: row
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from baton.engine.layers.attention import AttentionKind, HeadShape
from baton.engine.layers.compressor import Compressor
from baton.engine.layers.grouped_linear import GroupedLinear
from baton.engine.layers.linear import ExactLinear, Linear
from baton.engine.layers.norm import RmsNorm
from baton.engine.layers.rope import RotaryAngles
from baton.engine.mesh.split import Split
from baton.kernels.cache_write.rotation import Rotation
from baton.kernels.cache_write.windows import Windows
from baton.kernels.latent_attention.compressed_attention import compressed_attention
from baton.kernels.latent_attention.entries import Entries, EntryIndex
from baton.kernels.paging.layer_arenas import LayerArenas
from baton.kernels.paging.paged_rows import write_rows
from baton.kernels.paging.sequences import Sequences
from baton.kernels.positions.rope_tail import rope_tail


@dataclass(frozen=True, slots=True, kw_only=True)
class IndexConfig:
    num_heads: int
    width: int
    top_k: int
    """The most entries that a token attends to."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Compression:
    """The compressed entries of a layer, besides its window."""

    windows: Windows
    index: IndexConfig | None = None

    @property
    def side_cache(self) -> str:
        """The name of its rows in the cache."""
        return f"compressed by {self.windows.num_tokens}"

    @property
    def index_windows(self) -> Windows | None:
        if self.index is None:
            return None
        windows = self.windows
        return Windows(
            num_tokens=windows.num_tokens,
            num_series=windows.num_series,
            width=self.index.width,
        )

    @property
    def index_side_cache(self) -> str:
        return f"index of {self.side_cache}"

    @property
    def side_caches(self) -> list[tuple[str, int]]:
        """The side caches that it needs, with the widths of their rows."""
        own = (self.side_cache, self.windows.row_width)
        index = self.index_windows
        return [own] if index is None else [own, (self.index_side_cache, index.row_width)]


@dataclass(frozen=True, slots=True, kw_only=True)
class CompressedConfig:
    """Settings of compressed attention, for all layers."""

    query_rank: int
    out_groups: int
    out_rank: int
    """The rank of one group's output projection."""
    norm_eps: float


class EntryChooser(nn.Module):
    """The lightning indexer: narrow entries, queries and head weights."""

    def __init__(
        self,
        width: int,
        config: CompressedConfig,
        compression: Compression,
        angles: RotaryAngles,
    ) -> None:
        super().__init__()
        index, windows = compression.index, compression.index_windows
        assert index is not None and windows is not None
        self.config = index
        self.side_cache = compression.index_side_cache
        self.q = Linear(config.query_rank, index.num_heads * index.width, split=Split.NONE)
        self.weights = ExactLinear(width, index.num_heads, split=Split.NONE)
        self.compressor = Compressor(width, windows, angles, config.norm_eps)

    def forward(
        self,
        x: Tensor,
        query_latent: Tensor,
        rotation: Rotation,
        arena: LayerArenas,
        sequences: Sequences,
    ) -> EntryIndex:
        """Write the index entries of x, and choose the best ones."""
        rows, index = arena.side_caches[self.side_cache], self.config
        self.compressor(x, rows, sequences)
        q: Tensor = self.q(query_latent).view(len(x), index.num_heads, index.width)
        scale = (index.width * index.num_heads) ** -0.5
        return EntryIndex(
            q=rope_tail(q, *rotation),
            weights=self.weights(x),
            scale=scale,
            arena=rows,
            windows=self.compressor.windows,
            top_k=index.top_k,
        )


class CompressedAttention(nn.Module):
    def __init__(
        self,
        width: int,
        heads: HeadShape,
        kind: AttentionKind,
        config: CompressedConfig,
        compression: Compression | None,
        angles: RotaryAngles,
    ) -> None:
        super().__init__()
        self.heads = heads
        self.kind = kind
        self.config = config
        query_width = heads.num_heads * heads.head_dim
        self.q_a = Linear(width, config.query_rank, split=Split.NONE)
        self.q_a_norm = RmsNorm(config.query_rank, config.norm_eps)
        self.q_b = Linear(config.query_rank, query_width, split=Split.NONE)
        self.kv_a = Linear(width, heads.head_dim, split=Split.NONE)
        self.kv_a_norm = RmsNorm(heads.head_dim, config.norm_eps)
        self.sinks = nn.Parameter(torch.empty(heads.num_heads, device="meta"), False)
        self.out_a = GroupedLinear(
            config.out_groups, query_width // config.out_groups, config.out_rank
        )
        self.out = Linear(config.out_groups * config.out_rank, width, split=Split.NONE)
        self.side_cache = None if compression is None else compression.side_cache
        self.compressor: Compressor | None = None
        self.chooser: EntryChooser | None = None
        if compression is not None:
            self.compressor = Compressor(width, compression.windows, angles, config.norm_eps)
            if compression.index is not None:
                self.chooser = EntryChooser(width, config, compression, angles)

    def forward(
        self,
        x: Tensor,
        rotation: Rotation | None,
        arena: Tensor | LayerArenas,
        sequences: Sequences,
    ) -> Tensor:
        """x is [T, D]."""
        assert rotation is not None and isinstance(self.kind.window, int)
        own = arena.kv if isinstance(arena, LayerArenas) else arena
        latent = self.q_a_norm(self.q_a(x))
        q = self.q_b(latent).view(len(x), self.heads.num_heads, self.heads.head_dim)
        q = rope_tail(q, *rotation, unit_eps=self.config.norm_eps)  # [T, N, H]
        kv = rope_tail(self.kv_a_norm(self.kv_a(x)).unsqueeze(1), *rotation)  # [T, 1, H]
        write_rows(kv.squeeze(1), own, sequences)
        sequences.wait_for_others(own)
        entries = self._entries(x, latent, rotation, arena, sequences)
        attended = compressed_attention(
            q, own, sequences, self.kind.window, entries, self.kind.scoring, self.sinks
        )
        rotated = rope_tail(attended, *rotation, is_back=True)
        by_group = rotated.view(len(x), self.config.out_groups, -1)
        out: Tensor = self.out(self.out_a(by_group).flatten(1))
        return out

    def _entries(
        self,
        x: Tensor,
        latent: Tensor,
        rotation: Rotation,
        arena: Tensor | LayerArenas,
        sequences: Sequences,
    ) -> Entries | None:
        """Write the entries of x to the cache; returns the entries to attend to, if the layer has
        any."""
        if self.compressor is None or self.side_cache is None:
            return None
        assert isinstance(arena, LayerArenas), "a layer that compresses has rows to do it in"
        rows, index = arena.side_caches[self.side_cache], None
        self.compressor(x, rows, sequences)
        if self.chooser is not None:
            index = self.chooser(x, latent, rotation, arena, sequences)
        return Entries(arena=rows, windows=self.compressor.windows, index=index)
