"""Writes completions and chats in OpenAI's format: chunks, then usage, then [DONE].

The API in question formats the choices (`ChunkFormat`).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

from baton.gateway.http.completions.answers import Answer, UsageAnswer
from baton.gateway.http.errors import error_body
from baton.gateway.http.sending import sse
from baton.gateway.requests.generations.choices import ChoiceDelta, Completion
from baton.gateway.requests.generations.completion_stream import Usage
from baton.gateway.requests.generations.prompt_progress import PromptProgress


class ChunkFormat(Protocol):
    def whole(self, choices: Sequence[ChoiceDelta]) -> Answer: ...

    def usage(self, usage: Usage) -> UsageAnswer: ...

    def opening(self, num_choices: int) -> Iterable[Answer]:
        """Chunks before the first one with output."""

    def chunk(self, part: ChoiceDelta) -> Answer | None:
        """None if the part shows nothing."""

    def waiting(self) -> Answer:
        """A chunk with an empty choice, to carry progress."""

    def closing(self) -> Answer:
        """A chunk without choices, to carry usage."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerExtras:
    includes_usage: bool
    """Whether streams end with usage; whole answers always have it."""
    includes_running_usage: bool
    """Whether every chunk of a stream has the usage so far."""
    includes_receipt: bool


class OpenAiWriter:
    def __init__(self, completion: Completion, chunks: ChunkFormat, extras: AnswerExtras) -> None:
        self._completion = completion
        self._chunks = chunks
        self._extras = extras

    def whole(self, choices: Sequence[ChoiceDelta]) -> Answer:
        answer = self._chunks.whole(choices)
        answer.usage = self._chunks.usage(self._completion.usage)
        self._add_receipts(answer)
        return answer

    def opening(self) -> Iterable[bytes]:
        for answer in self._chunks.opening(self._completion.num_choices):
            self._add_running_usage(answer)
            yield sse.event(answer)

    def progress(self, progress: PromptProgress) -> Iterable[bytes]:
        answer = self._chunks.waiting()
        answer.prompt_progress = progress
        yield sse.event(answer)

    def events(self, part: ChoiceDelta) -> Iterable[bytes]:
        answer = self._chunks.chunk(part)
        if answer is None:
            return
        self._add_running_usage(answer)
        if part.delta.finish_reason is not None and not self._has_closing_chunk:
            self._add_receipts(answer)
        yield sse.event(answer)

    def ending(self) -> Iterable[bytes]:
        if self._has_closing_chunk:
            answer = self._chunks.closing()
            if self._extras.includes_usage:
                answer.usage = self._chunks.usage(self._completion.usage)
            self._add_receipts(answer)
            yield sse.event(answer)
        yield sse.DONE

    def failure(self, error: Exception) -> Iterable[bytes]:
        yield sse.event(error_body(error))

    @property
    def _has_closing_chunk(self) -> bool:
        """Receipts of several choices are complete only when all have ended."""
        has_several = self._completion.num_choices > 1
        return self._extras.includes_usage or (self._extras.includes_receipt and has_several)

    def _add_running_usage(self, answer: Answer) -> None:
        if self._extras.includes_usage:
            # As OpenAI does: present in every chunk, set in the last.
            is_set = self._extras.includes_running_usage
            answer.usage = self._chunks.usage(self._completion.usage) if is_set else None

    def _add_receipts(self, answer: Answer) -> None:
        if self._extras.includes_receipt:
            receipts = self._completion.receipts
            answer.baton = receipts[0] if len(receipts) == 1 else receipts
