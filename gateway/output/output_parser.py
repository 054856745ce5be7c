"""Streaming parser of one choice's output: reasoning first, then answer and tool calls."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection

from baton.gateway.output.formats import CallFormat
from baton.gateway.output.pieces import Piece, PieceWriter, new_call_id
from baton.gateway.output.reasoning import ReasoningStart, think
from baton.gateway.output.text_reader import Parse, TextReader


class OutputParser:
    """Its results do not depend on how the text is split into pieces."""

    def __init__(
        self,
        calls: CallFormat,
        *,
        reasoning: ReasoningStart = ReasoningStart.NOWHERE,
        max_calls: int | None = None,
        custom_names: Collection[str] = (),
        call_id: Callable[[], str] = new_call_id,
    ) -> None:
        self._reader = TextReader()
        self._out = PieceWriter(
            max_calls=max_calls,
            custom_names=custom_names,
            call_id=call_id,
            position=lambda: self._reader.position,
        )
        self._parsing = self._parse(calls, reasoning)
        self.reasoning_end: float = math.inf
        """Characters of output up to the end of reasoning; 0 for none, infinite while it lasts."""

    @property
    def num_calls(self) -> int:
        return self._out.num_calls

    @property
    def is_last_call_whole(self) -> bool:
        return self._out.is_last_call_whole

    def feed(self, text: str) -> list[Piece]:
        self._reader.feed(text)
        next(self._parsing, None)
        return self._out.drain()

    def finish(self, *, is_cut: bool = False, at_stop: bool = False) -> list[Piece]:
        """Release the held text, except for a call that was cut at its beginning. Safe to repeat.
        `is_cut`: the output was cut; by a stop string, if `at_stop`.
        """
        self._reader.end(is_cut=is_cut, at_stop=at_stop)
        pieces = self.feed("")
        self._out.end_call(is_cut=is_cut)
        return pieces + self._out.drain()

    def _parse(self, calls: CallFormat, reasoning: ReasoningStart) -> Parse[None]:
        self.reasoning_end = yield from think(self._reader, self._out, reasoning)
        yield from calls(self._reader, self._out)
