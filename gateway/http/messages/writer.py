"""Writes a message as Anthropic's events, or whole.

message_start, ping, events of the blocks ..., message_delta, message_stop  |  error
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from baton.core.sampling import FinishReason
from baton.gateway.chat.choice_reader import ChoiceReader
from baton.gateway.http.errors import MESSAGES
from baton.gateway.http.messages.answer import (
    MessageAnswer,
    MessageUsage,
    StopReason,
    message_usage,
)
from baton.gateway.http.messages.blocks import Event, OutputBlocks, ThinkingShown
from baton.gateway.http.sending import sse
from baton.gateway.requests.generations.choices import ChoiceDelta, Completion
from baton.gateway.text.output_text import TextDelta


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerTerms:
    """The parts of the answer that the request sets."""

    id: str
    model: str
    max_tokens: int | None
    """The output limit that was asked for."""
    room: int
    """Tokens that the context has left for output."""
    thinking: ThinkingShown
    has_receipt: bool
    prompt_tokens: Sequence[int] | None
    """Token ids of the prompt, if they and the output's are to be returned."""


class MessagesWriter:
    """The message that answers one request, whole or as events."""

    def __init__(self, completion: Completion, reader: ChoiceReader, terms: AnswerTerms) -> None:
        self._completion = completion
        self._reader = reader
        self._terms = terms
        self._blocks = OutputBlocks(terms.thinking)
        self._last: TextDelta | None = None
        """The last delta, once the answer has ended."""
        self._tokens: list[int] = []
        """Token ids of the output so far."""

    def whole(self, choices: Sequence[ChoiceDelta]) -> MessageAnswer:
        (part,) = choices
        for _ in self._read(part.delta):
            pass
        answer = self._begun()
        answer.content = self._blocks.blocks
        answer.stop_reason, answer.stop_sequence = self._stop()
        if self._terms.prompt_tokens is not None:
            answer.token_ids = self._tokens
        if self._terms.has_receipt:
            answer.baton = self._completion.receipts[0]
        return answer

    def opening(self) -> Iterable[bytes]:
        yield _encoded({"type": "message_start", "message": self._begun()})
        yield _encoded({"type": "ping"})

    def events(self, part: ChoiceDelta) -> Iterable[bytes]:
        return map(_encoded, self._read(part.delta))

    def ending(self) -> Iterable[bytes]:
        reason, sequence = self._stop()
        event: Event = {
            "type": "message_delta",
            "delta": {"stop_reason": reason, "stop_sequence": sequence},
            "usage": self._usage(),
        }
        if self._terms.prompt_tokens is not None:
            event["token_ids"] = self._tokens
        if self._terms.has_receipt:
            event["baton"] = self._completion.receipts[0]
        yield _encoded(event)
        yield _encoded({"type": "message_stop"})

    def failure(self, error: Exception) -> Iterable[bytes]:
        body = MESSAGES.write(error)
        yield sse.event(body, name=body.type)

    def _read(self, delta: TextDelta) -> Iterator[Event]:
        self._tokens += delta.tokens
        yield from self._blocks.read(self._reader.read(delta))
        if delta.finish_reason is not None:
            yield from self._blocks.close()
            self._last = delta

    def _begun(self) -> MessageAnswer:
        terms = self._terms
        answer = MessageAnswer(id=terms.id, model=terms.model, usage=self._usage())
        if terms.prompt_tokens is not None:
            answer.prompt_token_ids = terms.prompt_tokens
        return answer

    def _usage(self) -> MessageUsage:
        return message_usage(self._completion.usage, self._reader.num_reasoning_tokens)

    def _stop(self) -> tuple[StopReason, str | None]:
        """The stop reason, and the stop sequence if one matched."""
        assert self._last is not None, "an answer ends with a reason"
        if self._last.stop_string is not None:
            return "stop_sequence", self._last.stop_string
        match self._reader.finish_reason(self._last):
            case "tool_calls":
                return "tool_use", None
            case FinishReason.LENGTH:
                num_output = self._completion.usage.output_tokens
                is_full = num_output >= self._terms.room and num_output != self._terms.max_tokens
                return ("model_context_window_exceeded" if is_full else "max_tokens"), None
        return "end_turn", None


def _encoded(event: Event) -> bytes:
    return sse.event(event, name=event["type"])
