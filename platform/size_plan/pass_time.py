"""How long a pass of a layout takes on an accelerator, from the model's shape and a data sheet.

stage     sum over parts   max(FLOPs / (rate x share), bytes / (reading x share))
ranks     sent bytes / (link x share) + calls x latency
pass      stage + ranks + constant;  of p stages, m pieces:  (m + p - 1) / m  times the slowest
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache

from baton.core.kv_layout import ITEM_BYTES
from baton.engine.batch.batch import Chunk as RankChunk
from baton.engine.mesh.mesh import Mesh, Place
from baton.platform.instruments.pass_cost import (
    LOGIT_BYTES,
    Chunk,
    Work,
    attention_work,
    norm_work,
    product_work,
    rope_work,
    total,
)
from baton.platform.layout_plan.pass_transfers import RankModel, transfers
from baton.platform.layout_plan.transfers import sent_bytes
from baton.platform.machine.accelerators import Accelerator
from baton.platform.models.model_shape import (
    AttentionShape,
    ModelShape,
    Part,
    Product,
    shape_of,
)
from baton.platform.size_plan.efficiency import Efficiency

BITS = {"fp32": 32, "bf16": 16, "fp8": 8, "fp4": 4}
"""Bits of a weight that is multiplied at a precision; fp4 with its scales has some more."""

AS_WIDE = (Part.ATTENTION, Part.HEAD)
"""Parts that are multiplied in the dtype, whatever the precision of the weights."""


@dataclass(frozen=True, slots=True)
class PassLoad:
    """Requests that are alike: each has so many tokens in the pass, and in the cache after it."""

    num_requests: int
    num_tokens: int
    context: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PassTime:
    """The time of one pass, by part."""

    work: Work
    """Work of one rank of the slowest stage, for one piece."""
    compute_s: float
    """Parts one after the other, each by its own bound."""
    talk_s: float
    pass_s: float
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class LayoutShape:
    """The work of a layout's ranks. Identical layers are counted, as most are."""

    models: Sequence[RankModel]
    """The model of the first rank of each stage."""
    shape: ModelShape
    """Shape of a rank's part of the model, all stages together."""
    products: Mapping[Product, float]
    """Products of the mean stage and how often it has each, which may be a part of a layer's; the
    head whole. So are the next."""
    attentions: Mapping[AttentionShape, float]

    def work(self, asked: Sequence[PassLoad]) -> Mapping[Part, Work]:
        shape, mesh = self.shape, self.models[0].mesh
        rows = sum(one.num_requests * one.num_tokens for one in asked)
        outputs = sum(one.num_requests for one in asked)
        work = {part: Work() for part in Part}
        for product, count in self.products.items():
            one = _product(product, outputs if product.part is Part.HEAD else rows, shape, mesh)
            work[product.part] += _times(one, count)
        for attention, count in self.attentions.items():
            work[Part.ROPE] += _times(rope_work(attention, rows, shape.item_bytes), count)
            for each in asked:
                one = _attention(attention, each, shape.item_bytes)
                work[Part.ATTENTION] += _times(one, count)
        items = rows * shape.width
        work[Part.EMBEDDING] = Work(0.0, 2 * items * shape.item_bytes)
        work[Part.NORMS] = norm_work(items * shape.num_norms // mesh.pipeline, shape.item_bytes)
        num_logits = outputs * shape.vocab_size
        work[Part.SAMPLING] = Work(num_logits, num_logits * LOGIT_BYTES)
        return {part: one for part, one in work.items() if one.num_bytes}


def layout_shape(models: Sequence[RankModel], unstaged: RankModel, precision: str) -> LayoutShape:
    """`unstaged`: of the same mesh in one stage. Weights are as wide as the precision, that of the
    head as the dtype, however wide they were built."""
    shape, stages = shape_of(unstaged.own, unstaged.kv, unstaged.dtype), len(models)
    built_bytes = next(unstaged.own.parameters()).element_size()
    narrow, wide = BITS[precision] / 8 / built_bytes, ITEM_BYTES[unstaged.dtype] / built_bytes
    products = Counter(
        replace(one, num_bytes=round(one.num_bytes * (wide if one.part is Part.HEAD else narrow)))
        for one in shape.products
    )
    return LayoutShape(
        models=models,
        shape=shape,
        products={
            one: count if one.part is Part.HEAD else count / stages
            for one, count in products.items()
        },
        attentions={one: count / stages for one, count in Counter(shape.attentions).items()},
    )


class LayoutPasses:
    """The `baton.platform.planner.capacity.PassTimes` of one layout, at one efficiency."""

    def __init__(
        self,
        layout: LayoutShape,
        accelerator: Accelerator,
        precision: str,
        efficiency: Efficiency,
    ) -> None:
        self._layout = layout
        self._mesh = mesh = layout.models[0].mesh
        self._accelerator = accelerator
        self._precision = precision
        self._efficiency = efficiency
        stage_size = mesh.size // mesh.pipeline
        is_inside = stage_size <= accelerator.num_in_machine
        link_gb_s = accelerator.link_gb_s if is_inside else accelerator.network_gb_s
        self._link_bytes_s = link_gb_s * 1e9 * efficiency.link
        self._seconds = cache(self._timed)
        self._stage_communication_s = cache(self._max_stage_communication_s)

    def at(self, efficiency: Efficiency) -> LayoutPasses:
        return LayoutPasses(self._layout, self._accelerator, self._precision, efficiency)

    def prompt_s(self, num_tokens: int, num_before: int) -> float:
        return self.prompt(num_tokens, num_before).seconds

    def step_s(
        self, num_requests: int, context: float, piece: int = 0, num_before: float = 0.0
    ) -> float:
        return self.step(num_requests, context, piece, num_before).seconds

    def step(
        self, num_requests: int, context: float, piece: int = 0, num_before: float = 0.0
    ) -> PassTime:
        """Each data place has so many requests, and a piece behind others of its prompt."""
        decoding = PassLoad(num_requests, 1, max(round(context), 1))
        asked = (decoding,) if num_requests else ()
        part = PassLoad(1, piece, round(num_before) + piece)
        return self._seconds((*asked, part) if piece else asked)

    def prompt(self, num_tokens: int, num_before: int) -> PassTime:
        return self._seconds((PassLoad(1, num_tokens, num_before + num_tokens),))

    def _timed(self, asked: tuple[PassLoad, ...]) -> PassTime:
        """All data places compute as much as one."""
        stages = self._mesh.pipeline
        pieces = _pieces(asked, stages)
        work, compute_s = self._stage(pieces.asked)
        num_tokens = sum(one.num_requests * one.num_tokens for one in asked)
        talk_s = self._communication_s(num_tokens, sum(one.num_requests for one in asked))
        rounds = pieces.count + stages - 1
        busy_s = compute_s * rounds
        talking_s = talk_s * rounds / pieces.count
        together_s = (
            max(busy_s, talking_s) if self._efficiency.is_overlapped else busy_s + talking_s
        )
        return PassTime(
            work=work,
            compute_s=busy_s,
            talk_s=talking_s,
            pass_s=self._efficiency.pass_s,
            seconds=together_s + self._efficiency.pass_s,
        )

    def _stage(self, asked: Sequence[PassLoad]) -> tuple[Work, float]:
        work = self._layout.work(asked)
        rate = self._accelerator.tflop_s[self._precision] * 1e12 * self._efficiency.arithmetic
        wide = self._accelerator.tflop_s.get("bf16", 0.0) or max(self._accelerator.tflop_s.values())
        read = self._accelerator.read_gb_s * 1e9 * self._efficiency.read
        seconds = 0.0
        for part, one in work.items():
            of_part = wide * 1e12 * self._efficiency.arithmetic if part in AS_WIDE else rate
            seconds += max(one.flops / of_part, one.num_bytes / read)
        return total(work), seconds

    def _communication_s(self, num_tokens: int, num_outputs: int) -> float:
        """Bytes grow with tokens and with outputs: between powers of two, as a line does."""
        if self._mesh.size == 1:
            return 0.0
        outputs_s = _between(
            num_outputs,
            lambda num: self._stage_communication_s(num, num) - self._stage_communication_s(num, 1),
        )
        return _between(num_tokens, lambda num: self._stage_communication_s(num, 1)) + outputs_s

    def _max_stage_communication_s(self, num_tokens: int, num_outputs: int) -> float:
        """The slowest stage's first rank."""
        found = 0.0
        for stage, model in enumerate(self._layout.models):
            rank = self._mesh.rank_at(Place(tensor=0, context=0, data=0, stage=stage))
            chunk = RankChunk(range(num_tokens), 0, range(1), num_outputs)
            sent = transfers(model, rank, [chunk])
            calls = sum(one.count for one in sent)
            seconds = sent_bytes(sent) / self._link_bytes_s + calls * self._efficiency.call_s
            found = max(found, seconds)
        return found


def _between(number: int, value: Callable[[int], float]) -> float:
    low = 1 << (max(number, 1).bit_length() - 1)
    at_low = value(low)
    return at_low if number <= low else at_low + (value(2 * low) - at_low) * (number - low) / low


@dataclass(frozen=True, slots=True)
class _Pieces:
    count: int
    asked: tuple[PassLoad, ...]
    """The work of one micro-batch."""


def _pieces(asked: tuple[PassLoad, ...], stages: int) -> _Pieces:
    """Pieces of a pass: as many as there are stages, if there is enough for each."""
    if stages == 1:
        return _Pieces(1, asked)
    most = max(max(one.num_requests, one.num_tokens) for one in asked)
    count = max(min(stages, most), 1)
    cut = [
        replace(one, num_tokens=-(-one.num_tokens // count))
        if one.num_tokens > 1
        else replace(one, num_requests=-(-one.num_requests // count))
        for one in asked
    ]
    return _Pieces(count, tuple(cut))


def _product(product: Product, rows: int, shape: ModelShape, mesh: Mesh) -> Work:
    """Whole experts of a rank get their even part of the rows of all data places."""
    if product.experts is None or mesh.expert == 1:
        return product_work(product, rows, shape.item_bytes)
    all_rows = rows * mesh.num_expert_places
    everywhere = product_work(product, all_rows, shape.item_bytes)
    read = product.bytes_read(all_rows)
    share = 1 / mesh.expert
    return Work(everywhere.flops * share, read + (everywhere.num_bytes - read) * share)


def _attention(attention: AttentionShape, asked: PassLoad, item_bytes: int) -> Work:
    """The cost of a further identical request is that of the second minus that of the first, as
    matrices that all requests share are read once."""
    chunk = Chunk(asked.num_tokens, asked.context)
    one = attention_work(attention, [chunk], item_bytes)
    both = attention_work(attention, [chunk, chunk], item_bytes)
    more = asked.num_requests - 1
    return Work(
        one.flops + more * (both.flops - one.flops),
        one.num_bytes + more * (both.num_bytes - one.num_bytes),
    )


def _times(work: Work, count: float) -> Work:
    return Work(work.flops * count, work.num_bytes * count)
