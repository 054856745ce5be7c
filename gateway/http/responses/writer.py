"""Writes a response as OpenAI's events, or whole.

created, in_progress, events of the items ..., completed | incomplete | failed
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from baton.core.sampling import FinishReason
from baton.gateway.chat.choice_reader import ChoiceReader
from baton.gateway.http.completions.answers import ChatLogprob
from baton.gateway.http.completions.logprobs import TokenNames, chat_logprobs
from baton.gateway.http.errors import error_body
from baton.gateway.http.responses.answer import (
    ID_PREFIX,
    IncompleteDetails,
    ResponseAnswer,
    ResponseError,
    response_usage,
)
from baton.gateway.http.responses.items import Event, OutputItems
from baton.gateway.http.sending import sse
from baton.gateway.output.output_parser import OutputParser
from baton.gateway.output.pieces import Content, Reasoning
from baton.gateway.requests.generations.choices import ChoiceDelta, Completion
from baton.gateway.text.output_text import TextDelta


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerTerms:
    """The parts of the answer that the request sets."""

    names: TokenNames
    """Names of the tokens that have logprobs."""
    hides_reasoning: bool
    prompt_tokens: Sequence[int] | None
    """Token ids of the prompt, if they and the output's are to be returned."""
    has_receipt: bool


class ResponsesWriter:
    """The response to one request, whole or as events."""

    def __init__(
        self,
        completion: Completion,
        parser: OutputParser,
        answer: ResponseAnswer,
        terms: AnswerTerms,
    ) -> None:
        self._completion = completion
        self._answer = answer
        self._terms = terms
        self._reader = ChoiceReader(parser)
        if terms.prompt_tokens is not None:
            answer.prompt_token_ids, answer.token_ids = terms.prompt_tokens, []
        self._items = OutputItems(answer.id.removeprefix(ID_PREFIX))
        self._waiting: deque[tuple[int, ChatLogprob]] = deque()
        """Text offsets and logprobs of tokens not yet assigned to the answer."""
        self._sequence_number = 0

    def whole(self, choices: Sequence[ChoiceDelta]) -> ResponseAnswer:
        (part,) = choices
        for _ in self._read(part.delta):
            pass
        self.complete()
        return self._answer

    def opening(self) -> Iterable[bytes]:
        for kind in ("created", "in_progress"):
            yield self._encoded({"type": f"response.{kind}", "response": self._answer})

    def events(self, part: ChoiceDelta) -> Iterable[bytes]:
        return map(self._encoded, self._read(part.delta))

    def ending(self) -> Iterable[bytes]:
        self.complete()
        yield self._encoded({"type": f"response.{self._answer.status}", "response": self._answer})

    def fail(self, error: Exception) -> None:
        """Mark the answer as failed, with its output so far."""
        detail = error_body(error).error
        self._answer.status = "failed"
        self._answer.error = ResponseError(detail.code or detail.type, detail.message)
        self._answer.output = self._items.items

    def failure(self, error: Exception) -> Iterable[bytes]:
        self.fail(error)
        yield self._encoded({"type": "response.failed", "response": self._answer})

    def _read(self, delta: TextDelta) -> Iterator[Event]:
        pieces = self._reader.read(delta)
        if self._terms.hides_reasoning:
            pieces = [piece for piece in pieces if not isinstance(piece, Reasoning)]
        if isinstance(self._answer.token_ids, list):
            self._answer.token_ids += delta.tokens
        if delta.logprobs:
            entries = chat_logprobs(delta, self._terms.names).content
            self._waiting.extend(zip(delta.text_offsets, entries, strict=True))
        yield from self._items.read(pieces, self._logprobs_of)
        if delta.finish_reason is not None:
            is_complete = delta.finish_reason is not FinishReason.LENGTH
            yield from self._items.close(is_complete=is_complete)
            self._answer.status = "completed" if is_complete else "incomplete"

    def _logprobs_of(self, content: Content) -> Sequence[ChatLogprob]:
        """Logprobs of the tokens of this content. Those of reasoning, calls and marks before it are
        dropped."""
        found: list[ChatLogprob] = []
        for begin, end in content.spans:
            while self._waiting and self._waiting[0][0] < end:
                offset, entry = self._waiting.popleft()
                if offset + max(1, _num_chars(entry)) > begin:
                    found.append(entry)
        return found

    def complete(self) -> None:
        """Complete the answer, once the completion's usage is final. Safe to repeat."""
        if self._answer.status == "incomplete":
            self._answer.incomplete_details = IncompleteDetails("max_output_tokens")
        self._answer.output = self._items.items
        num_reasoning = self._reader.num_reasoning_tokens
        self._answer.usage = response_usage(self._completion.usage, num_reasoning)
        if self._terms.has_receipt:
            self._answer.baton = self._completion.receipts[0]

    def _encoded(self, event: Event) -> bytes:
        number = self._sequence_number
        self._sequence_number += 1
        return sse.event({**event, "sequence_number": number}, name=event["type"])


def _num_chars(entry: ChatLogprob) -> int:
    """Complete characters of the token alone."""
    return len(bytes(entry.bytes).decode(errors="ignore"))
