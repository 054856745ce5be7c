"""The messages of one rank in a forward pass, including its logits.

    lead's engine   orders                            numbers, to all of the engine
    tensor          a sum [T, D]                      behind the embedding, attention, feed-forwards
                                                      ([S, D] behind the model's last feed-forward)
    context         blocks written, in each layer     T is then the tokens of one rank
    expert          pairs [P, D], and how many        from data place to data place, and back;
                                                      of few tokens, as many rows as there may be
    pipeline        x and residual [2, T, D]          from stage to stage, a micro-batch each
    data            an intent, how many tokens        before a pass
    at the end      outputs [S, D], logits [S, V]

T = tokens that the rank computes, S = those whose outputs are wanted, D = model width, V =
vocabulary. The rank's modules show where it communicates. Expert choices are unknown, so pairs are
counted as if all data places had equally many tokens and all experts equal load. After the
attention of its last layer a model only computes S tokens.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

from torch import nn

from baton.core.kv_layout import ITEM_BYTES, KvLayout
from baton.engine.batch.batch import Chunk
from baton.engine.batch.micro_batches import micro_batches
from baton.engine.batch.token_shares import Shares, num_outputs, share_tokens
from baton.engine.layers.moe import MoeFeedForward
from baton.engine.mesh.expert_exchange import MAX_FIXED_TOKENS, SLOT_BYTES, fixed_room
from baton.engine.mesh.mesh import Mesh
from baton.engine.mesh.orders import expect_words, head_words, pass_words
from baton.engine.mesh.split import Share
from baton.engine.models.config.model_config import ModelConfig
from baton.engine.models.skeleton.decoder import Decoder
from baton.engine.models.skeleton.stream_decoder import StreamDecoder
from baton.engine.ranks.pipeline import PIECES_PER_STAGE, only_decodes
from baton.engine.sharding.cutting import adds_up, splits_vocabulary
from baton.platform.layout_plan.transfers import Kind, Transfer, merged

WORD_BYTES = 8
"""Bytes of an integer in messages between ranks."""
LOGIT_BYTES = ITEM_BYTES["float32"]


class Sum(NamedTuple):
    what: str
    """Which part's, in words."""
    is_of_outputs: bool
    """Whether it only covers tokens whose outputs are wanted, on the last stage."""


@dataclass(frozen=True, kw_only=True)
class RankModel:
    """A rank's part of a model, by sizes only."""

    whole: ModelConfig
    own: Decoder
    """The layers of its stage."""
    kv: KvLayout
    """The layout of the KV that it keeps, of its layers."""
    mesh: Mesh
    dtype: str
    """The dtype of activations."""
    device: str = "cpu"
    """The kind of device that it computes on."""
    micro_batch_tokens: int = 64

    @property
    def row_bytes(self) -> int:
        """The bytes of the activations of one token."""
        return self.whole.hidden_size * ITEM_BYTES[self.dtype]

    @property
    def has_screen(self) -> bool:
        """Whether its engine screens tokens, if the head allows it
        (kernels/products/vocabulary_screen.py)."""
        return self.device == "cpu" and self.mesh.engine.size == 1

    @property
    def splits_vocabulary(self) -> bool:
        return self.mesh.tensor > 1 and splits_vocabulary(self.whole, self.mesh.tensor)

    @cached_property
    def sums(self) -> Sequence[Sum]:
        """All-reduces of tensor ranks."""
        found = []
        for name, module in self.own.named_modules():
            if adds_up(module):
                what = _what(name)
                found.append(Sum(what, what != "attention" and self._is_of_last_layer(module)))
        return found

    @cached_property
    def sparse(self) -> Sequence[tuple[MoeFeedForward, bool]]:
        """Sparse layers, each with whether it only computes tokens whose outputs are wanted, on the
        last stage."""
        found = [each for each in self.own.modules() if isinstance(each, MoeFeedForward)]
        return [(each, self._is_of_last_layer(each)) for each in found]

    def _is_of_last_layer(self, module: nn.Module) -> bool:
        last = self.own.blocks[self.own.layers[-1]]
        is_narrowed = not isinstance(self.own, StreamDecoder)
        return is_narrowed and any(each is module for each in last.modules())


def transfers(model: RankModel, rank: int, chunks: Sequence[Chunk]) -> list[Transfer]:
    """The transfers of `rank`, with `model`, in a pass of those chunks in all engines of a mesh."""
    return merged(_Pass(model, rank, chunks).all()) if model.mesh.size > 1 else []


class _Pass:
    def __init__(self, model: RankModel, rank: int, chunks: Sequence[Chunk]) -> None:
        self._model = model
        self._mesh = mesh = model.mesh
        self._place = mesh.place(rank)
        self._is_lead = (self._place.tensor, self._place.context, self._place.stage) == (0, 0, 0)
        self._is_last = self._place.stage == mesh.pipeline - 1
        self._chunks = chunks
        self._num_outputs = sum(chunk.num_outputs for chunk in chunks)
        self._shares: Shares | None = None
        if mesh.context > 1:
            self._shares = share_tokens(chunks, mesh.context, model.kv.block_size)

    def all(self) -> Iterator[Transfer]:
        if self._mesh.data > 1 and self._is_lead:
            yield self._transfer("intents", Kind.ALL_GATHER, self._mesh.data, 2 * WORD_BYTES)
        if self._mesh.engine.size > 1 and self._mesh.data > 1:
            yield from self._orders(len(expect_words(0)))
        if self._mesh.engine.size > 1:
            yield from self._orders(len(pass_words(self._chunks)))
        for piece in self._pieces():
            num_tokens = sum(len(chunk.tokens) for chunk in piece)
            num_last = sum(chunk.num_outputs for chunk in piece) if self._is_last else num_tokens
            yield from self._layers(num_tokens, num_last)
        yield from self._outputs()
        if self._num_outputs and not self._mesh.has_whole_models:
            yield from self._logits()

    def _pieces(self) -> Sequence[Sequence[Chunk]]:
        """The micro-batches of this rank's layers."""
        if self._shares is not None:
            share = self._shares[self._place.context]
            return [[piece.of(self._chunks) for piece in share]]
        if self._mesh.pipeline == 1:
            return [self._chunks]
        return micro_batches(
            self._chunks,
            most=PIECES_PER_STAGE * self._mesh.pipeline,
            least_tokens=self._model.micro_batch_tokens,
        )

    def _orders(self, num_words: int) -> Iterator[Transfer]:
        """The lead's orders, preceded by their length."""
        for count in (1, num_words):
            yield self._of_engine("orders", count * WORD_BYTES)

    def _layers(self, num_tokens: int, num_last: int) -> Iterator[Transfer]:
        """The transfers of the layers in one micro-batch; its last feed-forward has `num_last`."""
        mesh, num_bytes = self._mesh, num_tokens * self._model.row_bytes
        if self._place.stage:
            yield self._transfer("activations", Kind.RECEIVE, mesh.pipeline, 2 * num_bytes)
        if mesh.tensor > 1:
            is_split = self._model.splits_vocabulary and not self._place.stage
            if is_split:
                yield self._transfer("embedding", Kind.ALL_REDUCE, mesh.tensor, num_bytes)
            for what, is_of_outputs in self._model.sums:
                num_rows = num_last if is_of_outputs else num_tokens
                if num_rows:
                    sum_bytes = num_rows * self._model.row_bytes
                    yield self._transfer(what, Kind.ALL_REDUCE, mesh.tensor, sum_bytes)
        if mesh.expert > mesh.tensor:
            for layer, is_of_outputs in self._model.sparse:
                num_rows = num_last if is_of_outputs else num_tokens
                yield from self._exchange(layer, num_tokens, num_rows)
        if self._shares is not None:
            yield from self._written(self._shares)
        if not self._is_last:
            yield self._transfer("activations", Kind.SEND, mesh.pipeline, 2 * num_bytes)

    def _exchange(
        self, layer: MoeFeedForward, num_tokens: int, num_rows: int
    ) -> Iterator[Transfer]:
        """Transfers to experts and back of this rank's `num_rows` tokens, in a pass of
        `num_tokens`."""
        mesh, row_bytes = self._mesh, self._model.row_bytes
        num_slots, num_choices = layer.experts.num_slots, layer.router.routing.num_choices
        sizes: dict[str, int] = {}
        if num_tokens <= MAX_FIXED_TOKENS[self._model.device]:
            room = mesh.expert * fixed_room(num_tokens, mesh.tensor, num_choices, num_slots)
            sizes["rows to experts"] = room * (row_bytes + SLOT_BYTES)
            sizes["rows of experts"] = room * row_bytes
        else:
            run = Share(self._place.tensor, mesh.tensor).run(num_rows)
            pairs = (run.stop - run.start) * num_choices
            sizes["pairs of each expert"] = mesh.expert * num_slots * WORD_BYTES
            sizes["rows to experts"] = sizes["rows of experts"] = pairs * row_bytes
        for what, num_bytes in sizes.items():
            yield self._transfer(what, Kind.ALL_TO_ALL, mesh.expert, num_bytes)

    def _written(self, shares: Shares) -> Iterator[Transfer]:
        """Context ranks exchange blocks, each as many as the rank that wrote most."""
        kv = self._model.kv
        most = max(
            sum(len(piece.blocks_of(self._chunks, kv.block_size)) for piece in share)
            for share in shares
        )
        for plane in kv.planes:
            num_bytes = most * plane.layer_block_bytes
            yield self._transfer("KV written", Kind.ALL_GATHER, self._mesh.context, num_bytes)

    def _outputs(self) -> Iterator[Transfer]:
        """Outputs to the ranks that compute logits, or a message that all KV is written."""
        mesh, row_bytes = self._mesh, self._model.row_bytes
        if self._shares is not None:
            most = max(num_outputs(self._chunks, share) for share in self._shares)
            num_bytes = max(most, 1) * row_bytes
            yield self._transfer("outputs", Kind.ALL_GATHER, mesh.context, num_bytes)
        elif mesh.context > 1:
            yield self._transfer("ends", Kind.ALL_GATHER, mesh.context, ITEM_BYTES["float32"])
        if mesh.pipeline > 1 and (self._place.tensor, self._place.context) == (0, 0):
            for stage in range(1, mesh.pipeline):
                kind = Kind.RECEIVE if self._is_lead else Kind.SEND
                has_outputs = stage == mesh.pipeline - 1 and self._num_outputs
                num_bytes = self._num_outputs * row_bytes if has_outputs else WORD_BYTES
                if self._is_lead or stage == self._place.stage:
                    what = "outputs" if has_outputs else "ends"
                    yield self._transfer(what, kind, mesh.pipeline, num_bytes)

    def _logits(self) -> Iterator[Transfer]:
        """Logits, computed on the last stage from rows that the lead sends, split over tensor
        ranks. In a decode-only pass a pipeline sends them without being asked.
        """
        if self._mesh.engine.size == 1:
            return
        mesh, vocab_size = self._mesh, self._model.whole.vocab_size
        if mesh.pipeline == 1 or not only_decodes(self._chunks):
            words = head_words((self._num_outputs, self._model.whole.hidden_size))
            yield from self._orders(len(words))
            yield self._of_engine("outputs", self._num_outputs * self._model.row_bytes)
        row_bytes = vocab_size * LOGIT_BYTES
        if self._is_last and not self._place.context and self._model.splits_vocabulary:
            num_bytes = self._num_outputs * row_bytes // mesh.tensor
            yield self._transfer("logits", Kind.ALL_GATHER, mesh.tensor, num_bytes)
        is_beside_lead = (self._place.tensor, self._place.context) == (0, 0)
        if mesh.pipeline > 1 and is_beside_lead and (self._is_lead or self._is_last):
            kind = Kind.RECEIVE if self._is_lead else Kind.SEND
            yield self._transfer("logits", kind, mesh.pipeline, self._num_outputs * row_bytes)

    def _of_engine(self, what: str, num_bytes: int) -> Transfer:
        return self._transfer(what, Kind.BROADCAST, self._mesh.engine.size, num_bytes)

    def _transfer(self, what: str, kind: Kind, num_ranks: int, num_bytes: int) -> Transfer:
        return Transfer(what=what, kind=kind, num_ranks=num_ranks, num_bytes=num_bytes)


def _what(name: str) -> str:
    """A readable name of a module's place in the model."""
    match name.split("."):
        case [*_, "out"]:
            return "attention"
        case [*_, "experts"]:
            return "experts"
        case _:
            return "feed-forward"
