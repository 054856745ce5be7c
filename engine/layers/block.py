"""The blocks of a decoder: attention and feed-forward, and how they join the residual stream s.

    Block                s' = s + attn(norm(s))          s'' = s' + ffn(norm(s'))      most families
    SandwichBlock        s' = s + norm(attn(norm(s)))    s'' = s' + norm(ffn(norm(s')))        Gemma
    ParallelBlock        s' = s + attn(norm(s)) + ffn(norm(s)), one norm for both          Falcon 7B
    SplitParallelBlock   the same with two norms                                          Falcon 40B
    SparseBlock          as Block, and passes on the tokens chosen by the index        DeepSeek V3.2

The stream is the sum of two tensors, x and residual: adding and normalising them is one operation
at the start of the next part.

The last block gets the tokens whose outputs are wanted (`rows`), and skips the others after
attention. A prompt needs one output, or none before its end.
"""

from __future__ import annotations

from torch import Tensor, nn

from baton.engine.layers.attention import Attention
from baton.kernels.attention.layer_kv import LayerCache
from baton.kernels.cache_write.rotation import Rotation
from baton.kernels.elementwise.add import add
from baton.kernels.elementwise.take_rows import take_rows
from baton.kernels.latent_attention.choose_tokens import Chosen
from baton.kernels.paging.sequences import Sequences


class Block(nn.Module):
    """`attn_norm` and `ffn_norm` add and normalise; see `baton.engine.layers.norm`."""

    def __init__(
        self, *, attn_norm: nn.Module, attn: nn.Module, ffn_norm: nn.Module, ffn: nn.Module
    ) -> None:
        """`attn` is an `Attention` or a `LatentAttention`."""
        super().__init__()
        self.attn_norm = attn_norm
        self.attn = attn
        self.ffn_norm = ffn_norm
        self.ffn = ffn

    def forward(
        self,
        x: Tensor,
        residual: Tensor | None,
        rotation: Rotation | None,
        cache: LayerCache,
        sequences: Sequences,
        rows: Tensor | None = None,
    ) -> tuple[Tensor, Tensor]:
        x, residual = self.attn_norm(x, residual)
        x = self.attn(x, rotation, cache, sequences)
        x, residual = self.ffn_norm(*wanted((x, residual), rows))
        return self.ffn(x), residual


class SparseBlock(Block):
    """`attn` is a `SparseLatentAttention`."""

    def forward(  # type: ignore[override]  # noqa: PLR0913  # with one more input and output
        self,
        x: Tensor,
        residual: Tensor | None,
        rotation: Rotation | None,
        cache: LayerCache,
        sequences: Sequences,
        chosen: Chosen | None,
        rows: Tensor | None = None,
    ) -> tuple[Tensor, Tensor, Chosen]:
        x, residual = self.attn_norm(x, residual)
        x, chosen = self.attn(x, rotation, cache, sequences, chosen)
        x, residual = self.ffn_norm(*wanted((x, residual), rows))
        return self.ffn(x), residual, chosen


class SandwichBlock(nn.Module):
    """Also normalises the outputs of attention and feed-forward, with plain norms."""

    def __init__(
        self,
        *,
        attn_norms: tuple[nn.Module, nn.Module],
        attn: Attention,
        ffn_norms: tuple[nn.Module, nn.Module],
        ffn: nn.Module,
    ) -> None:
        super().__init__()
        self.attn_norm, self.attn_post_norm = attn_norms
        self.attn = attn
        self.ffn_norm, self.ffn_post_norm = ffn_norms
        self.ffn = ffn

    def forward(
        self,
        x: Tensor,
        residual: Tensor | None,
        rotation: Rotation | None,
        cache: LayerCache,
        sequences: Sequences,
        rows: Tensor | None = None,
    ) -> tuple[Tensor, Tensor]:
        x, residual = self.attn_norm(x, residual)
        x, residual = wanted((self.attn(x, rotation, cache, sequences), residual), rows)
        x, residual = self.ffn_norm(self.attn_post_norm(x), residual)
        return self.ffn_post_norm(self.ffn(x)), residual


class ParallelBlock(nn.Module):
    """Attention and feed-forward read the same."""

    def __init__(self, *, norm: nn.Module, attn: Attention, ffn: nn.Module) -> None:
        super().__init__()
        self.norm = norm
        self.attn = attn
        self.ffn = ffn

    def forward(
        self,
        x: Tensor,
        residual: Tensor | None,
        rotation: Rotation | None,
        cache: LayerCache,
        sequences: Sequences,
        rows: Tensor | None = None,
    ) -> tuple[Tensor, Tensor]:
        x, residual = self.norm(x, residual)
        attended = self.attn(x, rotation, cache, sequences)
        attended, x, residual = wanted((attended, x, residual), rows)
        return add(attended, self.ffn(x)), residual


class SplitParallelBlock(Block):
    """Each reads the stream through its own norm; the feed-forward's is a plain one."""

    def forward(
        self,
        x: Tensor,
        residual: Tensor | None,
        rotation: Rotation | None,
        cache: LayerCache,
        sequences: Sequences,
        rows: Tensor | None = None,
    ) -> tuple[Tensor, Tensor]:
        x, residual = self.attn_norm(x, residual)
        attended = self.attn(x, rotation, cache, sequences)
        attended, residual = wanted((attended, residual), rows)
        return add(attended, self.ffn(self.ffn_norm(residual))), residual


def wanted(parts: tuple[Tensor, ...], rows: Tensor | None) -> tuple[Tensor, ...]:
    """[T, D] each -> those rows, or all."""
    return parts if rows is None else tuple(take_rows(part, rows) for part in parts)
