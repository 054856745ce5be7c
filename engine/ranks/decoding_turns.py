"""Incremental orders for decode passes: the other ranks are sent only what is new in a turn.

    turn 0       each row's token, position and block table
    turn 1 ..    the tokens, and the new blocks of rows that have grown

Tokens that the lead's host has not read yet (`baton.engine.schedule.async_scheduling`) go from its
device to the others', ordered after the pass that sampled them: no host waits for them.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from baton.engine.batch.batch import Chunk
from baton.engine.batch.decoding import Decoding
from baton.engine.mesh.orders import BeginDecoding, Pass, Turn, decoding_words, turn_words
from baton.engine.mesh.ranks import FOR_EVER, ORDER_TIMEOUT, RankGroup


class AnnouncedDecoding:
    """The turns of a decoding that the lead has announced."""

    def __init__(self, decoding: Decoding, ranks: RankGroup) -> None:
        self._decoding = decoding
        self._ranks = ranks
        self._turn = decoding.turn
        self._num_blocks = [len(table) for table in decoding.tables]
        """Number of blocks of each row that the other ranks know."""
        ranks.send_order(decoding_words(decoding))

    def is_before(self, chunks: Sequence[Chunk]) -> bool:
        """Whether `chunks` are the turn after the last announced one."""
        return chunks is self._decoding and self._decoding.turn == self._turn + 1

    def announce_next(self) -> None:
        decoding, tables = self._decoding, self._decoding.tables
        grown = [(row, tables[row][self._num_blocks[row] :]) for row in decoding.grown]
        drawn = decoding.drawn
        self._ranks.send_order(turn_words(() if drawn is not None else decoding.tokens, grown))
        if drawn is not None:
            # On a device, a time limit would make the host wait for the previous pass.
            self._ranks.broadcast_(drawn, FOR_EVER if drawn.is_cuda else ORDER_TIMEOUT)
        for row, blocks in grown:
            self._num_blocks[row] += len(blocks)
        self._turn = decoding.turn


class ReceivedPasses:
    """The chunks of each announced pass, on another rank."""

    def __init__(self, ranks: RankGroup, device: torch.device) -> None:
        self._ranks = ranks
        self._device = device
        self._decoding = Decoding((), (), (), ())
        """The decoding that began last."""
        self._tables: list[list[int]] = []

    def chunks_of(self, order: Pass | BeginDecoding | Turn) -> Sequence[Chunk]:
        match order:
            case Pass(chunks):
                return chunks
            case BeginDecoding(chunks):
                return self._begun(chunks)
            case Turn(tokens, grown):
                return self._gone_on(tokens, grown)

    def _begun(self, chunks: Sequence[Chunk]) -> Decoding:
        self._tables = [list(chunk.blocks) for chunk in chunks]
        self._decoding = Decoding(
            [chunk.tokens[0] for chunk in chunks],
            [chunk.start for chunk in chunks],
            self._tables,
            [chunk.open_slot for chunk in chunks],
            [chunk.adapter for chunk in chunks],
        )
        return self._decoding

    def _gone_on(
        self, tokens: Sequence[int] | Tensor, grown: Sequence[tuple[int, Sequence[int]]]
    ) -> Decoding:
        for row, blocks in grown:
            self._tables[row].extend(blocks)
        if not len(tokens):
            empty = torch.empty(len(self._decoding), dtype=torch.int64, device=self._device)
            tokens = self._ranks.broadcast_(empty)
        self._decoding.next_turn(tokens, [row for row, _ in grown])
        return self._decoding
