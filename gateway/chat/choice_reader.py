"""Splits one choice of a chat, as it is generated, into reasoning, answer and tool calls."""

from __future__ import annotations

import bisect
from typing import Literal

from baton.core.sampling import FinishReason
from baton.gateway.chat.tool_detection import MARKERS
from baton.gateway.output import xml_calls
from baton.gateway.output.output_parser import OutputParser
from baton.gateway.output.pieces import Piece
from baton.gateway.text.output_text import TextDelta

CALL_ENDS = frozenset((*MARKERS, *xml_calls.ENDS))
"""Marks that may be stop strings of a caller; a call that lacks them is still complete."""

ChatFinish = FinishReason | Literal["tool_calls"]


class ChoiceReader:
    def __init__(self, parser: OutputParser) -> None:
        self._parser = parser
        self._offsets: list[int] = []
        self._is_counted = False
        self.num_reasoning_tokens = 0
        """Reasoning tokens so far; final once something else has come."""

    def read(self, delta: TextDelta) -> list[Piece]:
        """The parts of the output that are certain. Text that may begin a marker is held back."""
        pieces = self._parser.feed(delta.text)
        if delta.finish_reason is not None:
            at_stop = delta.stop_string is not None
            pieces += self._parser.finish(is_cut=_is_cut(delta), at_stop=at_stop)
        self._count(delta)
        return pieces

    def finish_reason(self, delta: TextDelta) -> ChatFinish | None:
        """`tool_calls` if the model stopped after a call, but not if a stop string cut the call."""
        if delta.finish_reason is not FinishReason.STOP or not self._parser.num_calls:
            return delta.finish_reason
        if _is_cut(delta) and not self._parser.is_last_call_whole:
            return delta.finish_reason
        return "tool_calls"

    def _count(self, delta: TextDelta) -> None:
        """Tokens that begin before the end of the reasoning are part of it."""
        if self._is_counted:
            return
        self._offsets += delta.text_offsets
        end = self._parser.reasoning_end
        self.num_reasoning_tokens = bisect.bisect_left(self._offsets, end)
        self._is_counted = end < self._offsets[-1] if self._offsets else False


def _is_cut(delta: TextDelta) -> bool:
    """Whether the output was cut. A stop string within an argument's value leaves the call
    incomplete: closing it would make a call that the model has not asked for."""
    if delta.finish_reason is FinishReason.LENGTH:
        return True
    return delta.stop_string is not None and delta.stop_string.strip() not in CALL_ENDS
