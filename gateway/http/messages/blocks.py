"""The content blocks of an answer, streamed one after the other: start, deltas, stop.

thinking   start, thinking_delta ..., signature_delta, stop
text       start, text_delta ..., stop
tool_use   start, input_json_delta ..., stop
"""

from __future__ import annotations

import base64
from collections.abc import Iterator, Sequence
from enum import Enum
from hashlib import blake2b
from typing import Any

import msgspec

from baton.gateway.http.messages.answer import OutputBlock, TextBlock, ThinkingBlock, ToolUseBlock
from baton.gateway.output.pieces import CallArguments, CallStart, Content, Piece, Reasoning

Event = dict[str, Any]
"""Its type, and what it says."""
NOT_AN_OBJECT = "INVALID_JSON"
"""Anthropic's key for tool input that is not a JSON object."""


class ThinkingShown(Enum):
    ALL = "all"
    SIGNED = "signed"
    """The signature of thinking; it shows that there was thinking where its text is omitted."""
    NOTHING = "nothing"


class OutputBlocks:
    def __init__(self, shown: ThinkingShown) -> None:
        self.blocks: list[OutputBlock] = []
        """All but the last are complete."""
        self._shown = shown
        self._is_open = False
        self._texts: list[str] = []
        """Texts of the last block, joined when it is closed."""

    def read(self, pieces: Sequence[Piece]) -> Iterator[Event]:
        for piece in pieces:
            match piece:
                case Content(text):
                    yield from self._goes_on(TextBlock)
                    yield self._delta(text, type="text_delta", text=text)
                case Reasoning(text):
                    yield from self._think(text)
                case CallStart(_, call_id, name):
                    yield from self._start(ToolUseBlock(id=call_id, name=name))
                case CallArguments(_, text):
                    yield self._delta(text, type="input_json_delta", partial_json=text)

    def close(self) -> Iterator[Event]:
        """Close the last block, if there is one."""
        if not self._is_open:
            return
        text = "".join(self._texts)
        match self.blocks[-1]:
            case TextBlock() as block:
                block.text = text
            case ToolUseBlock() as block:
                block.input = _input(text)
            case ThinkingBlock() as block:
                block.thinking = text if self._shown is ThinkingShown.ALL else ""
                block.signature = _signature(text)
                yield self._delta("", type="signature_delta", signature=block.signature)
        yield {"type": "content_block_stop", "index": len(self.blocks) - 1}
        self._is_open = False

    def _think(self, text: str) -> Iterator[Event]:
        match self._shown:
            case ThinkingShown.ALL:
                yield from self._goes_on(ThinkingBlock)
                yield self._delta(text, type="thinking_delta", thinking=text)
            case ThinkingShown.SIGNED:
                yield from self._goes_on(ThinkingBlock)
                self._texts.append(text)

    def _goes_on(self, kind: type[TextBlock | ThinkingBlock]) -> Iterator[Event]:
        """Continue the last block if it is of that kind; else begin a new one."""
        if not (self._is_open and isinstance(self.blocks[-1], kind)):
            yield from self._start(kind())

    def _start(self, block: OutputBlock) -> Iterator[Event]:
        yield from self.close()
        self.blocks.append(block)
        self._is_open, self._texts = True, []
        index = len(self.blocks) - 1
        yield {"type": "content_block_start", "index": index, "content_block": block}

    def _delta(self, text: str, /, **delta: str) -> Event:
        """An event that adds `text` to the last block."""
        self._texts.append(text)
        index = len(self.blocks) - 1
        return {"type": "content_block_delta", "index": index, "delta": delta}


def _signature(thinking: str) -> str:
    return base64.b64encode(blake2b(thinking.encode(), digest_size=24).digest()).decode()


def _input(text: str) -> dict[str, Any]:
    """The input of a call that may have been cut short."""
    if not text.strip():
        return {}
    try:
        return msgspec.json.decode(text, type=dict[str, Any])
    except (msgspec.DecodeError, RecursionError):
        return {NOT_AN_OBJECT: text}
