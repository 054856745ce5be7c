"""The output items of a response, streamed one after the other.

reasoning   added, part added, text delta ..., text done, part done, done
message     added, part added, text delta ..., text done, part done, done
call        added, arguments delta ..., arguments done, done; of a custom tool its input likewise
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Literal

import msgspec

from baton.gateway.http.completions.answers import ChatLogprob
from baton.gateway.output.pieces import (
    CallArguments,
    CallStart,
    Content,
    Piece,
    Reasoning,
)

Status = Literal["in_progress", "completed", "incomplete"]
Event = dict[str, Any]
"""Its type, and what it says."""


class OutputTextPart(msgspec.Struct, tag_field="type", tag="output_text"):
    text: str = ""
    annotations: list[Any] = []
    logprobs: list[ChatLogprob] = []


class ReasoningTextPart(msgspec.Struct, tag_field="type", tag="reasoning_text"):
    text: str = ""


class MessageItem(msgspec.Struct, kw_only=True, tag_field="type", tag="message"):
    id: str
    status: Status = "in_progress"
    role: Literal["assistant"] = "assistant"
    content: list[OutputTextPart] = []


class ReasoningItem(msgspec.Struct, kw_only=True, tag_field="type", tag="reasoning"):
    id: str
    status: Status = "in_progress"
    summary: list[Any] = []
    content: list[ReasoningTextPart] = []


class CallItem(msgspec.Struct, kw_only=True, tag_field="type", tag="function_call"):
    id: str
    call_id: str
    name: str
    arguments: str = ""
    status: Status = "in_progress"


class CustomCallItem(msgspec.Struct, kw_only=True, tag_field="type", tag="custom_tool_call"):
    id: str
    call_id: str
    name: str
    input: str = ""
    status: Status = "in_progress"


Item = MessageItem | ReasoningItem | CallItem | CustomCallItem


class OutputItems:
    def __init__(self, base_id: str) -> None:
        """`base_id` makes the items' ids."""
        self.items: list[Item] = []
        self._base_id = base_id

    def read(
        self, pieces: Sequence[Piece], logprobs_of: Callable[[Content], Sequence[ChatLogprob]]
    ) -> Iterator[Event]:
        for piece in pieces:
            match piece:
                case Content(text):
                    yield from self._add_text(text, logprobs_of(piece))
                case Reasoning(text):
                    yield from self._add_reasoning(text)
                case CallStart(_, call_id, name, is_custom=True):
                    item_id = self._new_id("ctc")
                    yield from self._open(CustomCallItem(id=item_id, call_id=call_id, name=name))
                case CallStart(_, call_id, name):
                    item_id = self._new_id("fc")
                    yield from self._open(CallItem(id=item_id, call_id=call_id, name=name))
                case CallArguments(_, text):
                    yield from self._add_arguments(text)

    def close(self, *, is_complete: bool) -> Iterator[Event]:
        """Close the last item. An empty output becomes an empty message."""
        if not self.items:
            yield from self._add_text("", ())
        yield from self._close_last("completed" if is_complete else "incomplete")

    def _add_text(self, text: str, logprobs: Sequence[ChatLogprob]) -> Iterator[Event]:
        if not isinstance(self._last, MessageItem):
            item = MessageItem(id=self._new_id("msg"))
            yield from self._open(item)
            item.content.append(OutputTextPart())
            yield self._event("content_part.added", content_index=0, part=item.content[0])
        else:
            item = self._last
        (part,) = item.content
        part.text += text
        part.logprobs += logprobs
        yield self._event("output_text.delta", content_index=0, delta=text, logprobs=logprobs)

    def _add_reasoning(self, text: str) -> Iterator[Event]:
        if not isinstance(self._last, ReasoningItem):
            item = ReasoningItem(id=self._new_id("rs"))
            yield from self._open(item)
            item.content.append(ReasoningTextPart())
            yield self._event("content_part.added", content_index=0, part=item.content[0])
        else:
            item = self._last
        item.content[0].text += text
        yield self._event("reasoning_text.delta", content_index=0, delta=text)

    def _add_arguments(self, text: str) -> Iterator[Event]:
        item = self._last
        if isinstance(item, CustomCallItem):
            item.input += text
            yield self._event("custom_tool_call_input.delta", delta=text)
            return
        assert isinstance(item, CallItem), "arguments follow the start of their call"
        item.arguments += text
        yield self._event("function_call_arguments.delta", delta=text)

    @property
    def _last(self) -> Item | None:
        return self.items[-1] if self.items else None

    def _new_id(self, kind: str) -> str:
        return f"{kind}_{self._base_id}_{len(self.items)}"

    def _open(self, item: Item) -> Iterator[Event]:
        yield from self._close_last("completed")
        self.items.append(item)
        index = len(self.items) - 1
        yield {"type": "response.output_item.added", "output_index": index, "item": item}

    def _close_last(self, status: Status) -> Iterator[Event]:
        item = self._last
        if item is None or item.status != "in_progress":
            return
        match item:
            case MessageItem(content=[text_part]):
                yield self._event(
                    "output_text.done",
                    content_index=0,
                    text=text_part.text,
                    logprobs=text_part.logprobs,
                )
                yield self._event("content_part.done", content_index=0, part=text_part)
            case ReasoningItem(content=[part]):
                yield self._event("reasoning_text.done", content_index=0, text=part.text)
                yield self._event("content_part.done", content_index=0, part=part)
            case CallItem():
                yield self._event(
                    "function_call_arguments.done", name=item.name, arguments=item.arguments
                )
            case CustomCallItem():
                yield self._event("custom_tool_call_input.done", input=item.input)
        item.status = status
        index = len(self.items) - 1
        yield {"type": "response.output_item.done", "output_index": index, "item": item}

    def _event(self, kind: str, **fields: Any) -> Event:
        """An event of the last item."""
        index = len(self.items) - 1
        place = {"item_id": self.items[index].id, "output_index": index}
        return {"type": f"response.{kind}", **place, **fields}
