"""Finds the cache points of a conversation in its prompt: after a message, or after a part of one.

    the whole prompt     <system>..</system><user>..</user><assistant>
    messages up to it    <system>..</system>                              ends where they part
    or with a mark       <system>..<mark></system><user>...               ends where they part

The template's text of the first messages alone is usually a prefix of the whole prompt. Where it is
not, and after a part of a message, a mark inserted into the text shows the place. An inexact place
is harmless: a point only says how much of this prompt is to stay cached.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from baton.core.errors import InvalidRequest
from baton.core.messages import CachePoint
from baton.gateway.chat.conversation import Conversation, encode_chat, render_chat
from baton.gateway.requests.cache_control import MarkedMessage
from baton.gateway.requests.gateway import Gateway

MARK = "\ue0c4"
"""A private-use character of Unicode, which no template treats specially."""
WAYS_TO_WRITE_MARK = (MARK, r"\ue0c4")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Rendered:
    conversation: Conversation
    text: str

    def end_of(self, mark: MarkedMessage) -> int:
        """Characters of the prompt up to the point; 0 if it cannot be found."""
        first: str | None = None
        if mark.part_end is None:
            first = self._render(self.conversation.messages[: mark.message + 1])
            if first is not None and self.text.startswith(first):
                return len(first)
        marked = self._render(self._with_mark(mark))
        if marked is not None and not any(written in marked for written in WAYS_TO_WRITE_MARK):
            marked = None  # nor is the message
        return max(num_common(self.text, other or "") for other in (first, marked))

    def _render(self, messages: Sequence[Mapping[str, Any]] | None) -> str | None:
        """None if the template refuses these messages by themselves."""
        if messages is None:
            return None
        part = replace(
            self.conversation, messages=messages, is_continued=False, adds_generation_prompt=False
        )
        try:
            return render_chat(part)
        except InvalidRequest:
            return None

    def _with_mark(self, mark: MarkedMessage) -> list[Mapping[str, Any]] | None:
        messages = list(self.conversation.messages)
        content = messages[mark.message].get("content")
        if not isinstance(content, str):
            return None
        end = len(content) if mark.part_end is None else mark.part_end
        marked = content[:end] + MARK + content[end:]
        messages[mark.message] = {**messages[mark.message], "content": marked}
        return messages


async def find_cache_points(
    gateway: Gateway, conversation: Conversation, text: str, tokens: Sequence[int]
) -> tuple[CachePoint, ...]:
    """The cache points in the prompt of `conversation`."""
    rendered = _Rendered(conversation=conversation, text=text)
    ttl_s_by_len: dict[int, float] = {}
    for mark in conversation.marks:
        beginning = text[: rendered.end_of(mark)]
        # The last token of a prefix may merge with the text after it.
        num_tokens = num_common(tokens, await encode_chat(gateway, conversation, beginning))
        if num_tokens:
            ttl_s_by_len[num_tokens] = max(mark.ttl_s, ttl_s_by_len.get(num_tokens, 0.0))
    return tuple(CachePoint(*point) for point in sorted(ttl_s_by_len.items()))


def num_common(one: Sequence[Any], other: Sequence[Any]) -> int:
    """Length of the common prefix of two texts or token lists. It compares slices, which is
    fast."""
    low, high = 0, min(len(one), len(other))
    while low < high:
        middle = (low + high + 1) // 2
        if one[low:middle] == other[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low
