"""Arithmetic ceilings of parts whose weights have fewer bits than activations.

    kind of weight  ->  the largest of each part of the model, times many rows  ->  best FLOP/s

Int8 products are faster than 16-bit ones where there is an instruction, and as fast where weights
are widened first. So the ceiling of such a part is the measured rate of its products with many
rows, or the dtype's matrix rate if that is higher.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial

import torch
from torch import Tensor

from baton.engine.layers.linear import Linear
from baton.engine.layers.moe import Experts
from baton.engine.models.skeleton.decoder import Decoder
from baton.kernels.experts.packed_quantized_experts import PackedQuantizedExperts
from baton.kernels.products.linear import linear, logits
from baton.kernels.products.weight import Weight
from baton.platform.instruments.ceilings import Ceilings, best_s, measure_ceilings
from baton.platform.instruments.loaded_engine import LoadedEngine
from baton.platform.models.model_shape import Part, Product, part_of, product_of

NUM_ROWS = {"cpu": 256, "cuda": 2048}
"""Rows above which a product gets no faster."""


@dataclass(frozen=True, slots=True)
class _Multiplier:
    product: Product
    kind: type[Weight]
    multiply: Callable[[Tensor], Tensor]


def ceilings_of(measured: LoadedEngine) -> Ceilings:
    """The ceilings of the device, for this model."""
    dtype = getattr(torch, measured.loaded.info.dtype)
    ceilings = measure_ceilings(dtype, measured.device)
    quantized = [
        each
        for each in _largest_of_parts(measured.loaded.model)
        if each.product.is_narrower_than(measured.shape.item_bytes)
    ]
    rate_by_kind = dict.fromkeys((each.kind for each in quantized), ceilings.flops_s)
    for each in quantized:
        rate = _rate(each, dtype, measured.device)
        rate_by_kind[each.kind] = max(rate_by_kind[each.kind], rate)
    rates = {each.product.part: rate_by_kind[each.kind] for each in quantized}
    return replace(ceilings, flops_s_by_part=rates)


def _largest_of_parts(model: Decoder) -> list[_Multiplier]:
    largest: dict[Part, _Multiplier] = {}
    for each in sorted(_multipliers(model), key=lambda each: each.product.num_bytes):
        largest[each.product.part] = each
    return list(largest.values())


def _multipliers(model: Decoder) -> Iterator[_Multiplier]:
    for block in model.blocks:
        for name, module in block.named_modules():
            if isinstance(module, Linear):
                product = product_of(part_of(name), module.weight, is_gated=module.is_gated)
                yield _Multiplier(product, type(module.weight), module)
            if isinstance(module, Experts) and isinstance(module.down, PackedQuantizedExperts):
                one = module.down.one(0)
                multiply = partial(linear, weight=one)
                yield _Multiplier(product_of(Part.EXPERTS, one), type(one), multiply)
    head = (model.embed if model.head is None else model.head).weight
    yield _Multiplier(product_of(Part.HEAD, head), type(head), lambda x: logits(x, head))


def _rate(one: _Multiplier, dtype: torch.dtype, device: str) -> float:
    """FLOP/s"""
    num_rows, product = NUM_ROWS[torch.device(device).type], one.product
    x = torch.randn(num_rows, product.width, device=device).to(dtype)
    flops = 2 * num_rows * product.width * product.num_rows
    return flops / best_s(lambda: one.multiply(x), device)
