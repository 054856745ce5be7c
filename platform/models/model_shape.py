"""The cost-relevant shape of a loaded model: products, attentions, norms."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from enum import StrEnum

from torch import nn

from baton.core.kv_layout import ITEM_BYTES, KvLayout
from baton.engine.layers.attention import Attention
from baton.engine.layers.compressed_attention import CompressedAttention
from baton.engine.layers.indexer import IndexConfig
from baton.engine.layers.linear import Linear
from baton.engine.layers.mla import LatentAttention
from baton.engine.layers.moe import DOWN, GATE_UP, MoeFeedForward
from baton.engine.layers.norm import LayerNorm, RmsNorm
from baton.engine.layers.sparse_mla import SparseLatentAttention
from baton.engine.models.skeleton.decoder import Decoder
from baton.engine.models.skeleton.stream_decoder import StreamDecoder
from baton.kernels.latent_attention.latent_heads import LatentShape
from baton.kernels.paging.window import Window
from baton.kernels.products.weight import Weight


class Part(StrEnum):
    """The parts of a pass, in the order of a layer."""

    EMBEDDING = "embedding"
    NORMS = "norms"
    QKV = "qkv"
    ROPE = "RoPE and KV write"
    ATTENTION = "attention"
    OUT = "attention out"
    ROUTER = "router"
    EXPERTS = "experts"
    GATE_UP = "gate and up"
    DOWN = "down"
    HEAD = "head"
    SAMPLING = "sampling"


BEHIND = (Part.ROUTER, Part.EXPERTS, Part.GATE_UP, Part.DOWN)
"""The parts of a block after its attention."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Product:
    """x [T, K] times a weight [N, K]."""

    part: Part
    width: int
    num_rows: int
    num_bytes: int
    """Bytes of the weight as stored; with experts, of all of them."""
    is_gated: bool = False
    """Whether the output is gated, which halves its width."""
    experts: tuple[int, int] | None = None
    """The number of experts with such a weight, and how many of them each row uses."""
    is_of_outputs: bool = False
    """Whether x has only the rows whose outputs are wanted, as after the last block's attention."""

    @property
    def num_choices(self) -> int:
        """Products per row of x."""
        return 1 if self.experts is None else self.experts[1]

    def bytes_read(self, num_tokens: int) -> float:
        """Bytes of the weight; with experts, of those chosen under an even load."""
        if self.experts is None:
            return self.num_bytes
        num_experts, num_choices = self.experts
        return self.num_bytes * (1 - (1 - num_choices / num_experts) ** num_tokens)

    @property
    def num_written(self) -> int:
        """Outputs per row of x."""
        return self.num_rows // 2 if self.is_gated else self.num_rows

    def is_narrower_than(self, item_bytes: int) -> bool:
        """Whether the weight has fewer bits than the activations."""
        num_weights = 1 if self.experts is None else self.experts[0]
        return self.num_bytes < num_weights * self.num_rows * self.width * item_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionShape:
    num_heads: int
    num_kv_heads: int
    head_dim: int
    window: Window
    kv_token_bytes: int
    """K and V of one token, all heads, with their scales; or its latent."""
    latent: LatentShape | None = None
    """The shape of heads that make their keys and values of a latent."""
    weight_bytes: int = 0
    """The bytes of the matrices that make keys and values of a latent."""
    num_chosen: int | None = None
    """Tokens that a query reads, where an index chooses them."""
    index: IndexConfig | None = None
    """The index of a layer that has one of its own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelShape:
    width: int
    vocab_size: int
    item_bytes: int
    """The bytes of a number of an activation."""
    products: tuple[Product, ...]
    """The products of all layers, and of the head."""
    attentions: tuple[AttentionShape, ...]
    num_norms: int
    """Norms over the width of the model, the last included."""

    @property
    def weight_bytes(self) -> int:
        """The bytes that a pass of one token reads: of experts, those that it chooses."""
        return round(sum(product.bytes_read(1) for product in self.products))


def shape_of(model: Decoder, layout: KvLayout, dtype: str) -> ModelShape:
    """`dtype` is that of the activations, `layout` that of the KV."""
    head = model.embed if model.head is None else model.head
    kv_token_bytes = layout.layer_block_bytes // layout.block_size
    products = [product for block in model.blocks[:-1] for product in _products_of(block)]
    is_short = not isinstance(model, StreamDecoder)
    for product in _products_of(model.blocks[-1]):
        products.append(replace(product, is_of_outputs=is_short and product.part in BEHIND))
    products.append(product_of(Part.HEAD, head.weight))
    return ModelShape(
        width=head.weight.shape[1],
        vocab_size=head.weight.shape[0],
        item_bytes=ITEM_BYTES[dtype],
        products=tuple(products),
        attentions=tuple(
            _attention_shape(attention, kv_token_bytes)
            for block in model.blocks
            for attention in block.modules()
            if isinstance(attention, Attention | LatentAttention | CompressedAttention)
        ),
        num_norms=sum(1 for block in model.blocks for _ in _wide_norms(block)) + 1,
    )


def _attention_shape(
    attention: Attention | LatentAttention | CompressedAttention, kv_token_bytes: int
) -> AttentionShape:
    """The shape; of compressed contexts that of the window alone: what entries cost is left out."""
    of_latents = attention if isinstance(attention, LatentAttention) else None
    of_chosen = attention if isinstance(attention, SparseLatentAttention) else None
    indexer = None if of_chosen is None else of_chosen.indexer
    return AttentionShape(
        num_heads=attention.heads.num_heads,
        num_kv_heads=attention.heads.num_kv_heads,
        head_dim=attention.heads.head_dim,
        window=attention.kind.window,
        kv_token_bytes=kv_token_bytes,
        latent=None if of_latents is None else of_latents.shape,
        weight_bytes=0 if of_latents is None else of_latents.kv_b.nbytes,
        num_chosen=None if of_chosen is None else of_chosen.num_chosen,
        index=None if indexer is None else indexer.config,
    )


def _products_of(block: nn.Module) -> Iterator[Product]:
    for name, module in block.named_modules():
        if isinstance(module, Linear):
            yield product_of(part_of(name), module.weight, is_gated=module.is_gated)
        if isinstance(module, MoeFeedForward):
            yield from products_of_experts(module)


def products_of_experts(module: MoeFeedForward) -> Iterator[Product]:
    counts = module.experts.num_experts, module.router.routing.num_choices
    for name in (GATE_UP, DOWN):
        weight = getattr(module.experts, name)
        yield Product(
            part=Part.EXPERTS,
            width=weight.shape[2],
            num_rows=weight.shape[1],
            num_bytes=weight.nbytes,
            is_gated=name == GATE_UP,
            experts=counts,
        )


def part_of(name: str) -> Part:
    """The part of a weight, by its module's name."""
    match name.rpartition(".")[2]:
        case "qkv" | "q" | "q_a" | "q_b" | "kv_a" | "k" | "weights":
            return Part.QKV
        case "out":
            return Part.OUT
        case "inputs":
            return Part.QKV
        case "router" | "shared_gate" | "mix":
            return Part.ROUTER
        case "gate_up" | "up":
            return Part.GATE_UP
        case "down":
            return Part.DOWN
        case "head":
            return Part.HEAD
        case other:
            raise ValueError(f"a product that no part is known for: {other!r}")


def product_of(part: Part, weight: Weight, *, is_gated: bool = False) -> Product:
    num_rows, width = weight.shape
    return Product(
        part=part, width=width, num_rows=num_rows, num_bytes=weight.nbytes, is_gated=is_gated
    )


def _wide_norms(block: nn.Module) -> Iterator[nn.Module]:
    """Norms over heads are part of RoPE."""
    for child in block.children():
        if isinstance(child, RmsNorm | LayerNorm):
            yield child
