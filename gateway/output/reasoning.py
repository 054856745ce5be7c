"""Parser of reasoning before an answer: <think> ... </think>, or on a channel.

Some chat templates write <think> at the end of the prompt; the output then begins within it.
"""

from __future__ import annotations

from enum import Enum

from baton.gateway.output.harmony import CHANNEL, START, analysis
from baton.gateway.output.pieces import PieceWriter
from baton.gateway.output.text_reader import Parse, TextReader
from baton.gateway.text.chat_template import ChatTemplate

THINK_BEGIN, THINK_END = "<think>", "</think>"


class ReasoningStart(Enum):
    """Where reasoning can be in an output."""

    NOWHERE = "nowhere"
    """The model has none, or the prompt has closed it."""
    FIRST = "first"
    """The output may begin with it."""
    OPEN = "open"
    """The prompt has opened it."""
    CHANNEL = "channel"
    """The output may begin with messages of reasoning; see `harmony`."""


def reasoning_format(parser: str, template: ChatTemplate) -> str:
    """none, think or harmony; `parser` is the setting gateway.reasoning_parser."""
    if parser != "auto":
        return parser
    if CHANNEL in template.source:
        return "harmony"
    has_marks = THINK_BEGIN in template.source or "reasoning_content" in template.source
    return "think" if has_marks else "none"


def reasoning_start(reasoning_format: str, prompt: str) -> ReasoningStart:
    """Where reasoning can be in the output after a prompt with this text."""
    ending = prompt.rstrip()
    if reasoning_format == "none":
        return ReasoningStart.NOWHERE
    if reasoning_format == "harmony":
        is_header_open = ending.endswith(f"{START}assistant")
        return ReasoningStart.CHANNEL if is_header_open else ReasoningStart.NOWHERE
    if ending.endswith(THINK_BEGIN):
        return ReasoningStart.OPEN
    return ReasoningStart.NOWHERE if ending.endswith(THINK_END) else ReasoningStart.FIRST


def think(reader: TextReader, out: PieceWriter, start: ReasoningStart) -> Parse[int]:
    """Read reasoning, if there is any; return where it ends."""
    if start is ReasoningStart.NOWHERE:
        return 0
    if start is ReasoningStart.CHANNEL:
        return (yield from analysis(reader, out))
    begins = yield from reader.leads_with(THINK_BEGIN)
    if not begins and start is not ReasoningStart.OPEN:
        return 0
    yield from reader.drop_space()
    yield from reader.copy_until((THINK_END,), out.reasoning)
    end = reader.position
    yield from reader.drop_space()
    return end
