"""Parses a streamed answer: which events carry output, and when they arrived.

Does no I/O: the reader of the socket feeds it bytes with times.

    data: {"choices": [{"text": "..."}]}                     /v1/completions
    data: {"choices": [{"delta": {"content": "..."}}]}       /v1/chat/completions
    data: {"choices": [], "usage": {...}}                    where include_usage is taken
    data: [DONE]
"""

from __future__ import annotations

from typing import Any

import msgspec

from baton.platform.load_generator.outcome import Ending, Exchange, Usage

DONE = b"[DONE]"
DETAIL_CHARACTERS = 300


class _Details(msgspec.Struct, gc=False):
    cached_tokens: int | None = None


class _Usage(msgspec.Struct, gc=False):
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    prompt_tokens_details: _Details | None = None


class _Delta(msgspec.Struct):
    role: str | None = None
    content: str | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None
    tool_calls: list[Any] | None = None

    @property
    def has_output(self) -> bool:
        return bool(self.content or self.reasoning_content or self.reasoning or self.tool_calls)


class _Choice(msgspec.Struct):
    text: str | None = None
    delta: _Delta | None = None
    finish_reason: str | None = None

    @property
    def has_output(self) -> bool:
        """A role alone or an end alone is no output. Empty text before the end is a token whose
        characters come with the next one."""
        if self.delta is None:
            return bool(self.text) or (self.text == "" and not self.finish_reason)
        if self.delta.has_output:
            return True
        return self.delta.content == "" and not (self.delta.role or self.finish_reason)


class _Event(msgspec.Struct):
    choices: list[_Choice] = []
    usage: _Usage | None = None
    error: Any = None


_decode = msgspec.json.Decoder(_Event).decode


class AnswerReader:
    def __init__(self) -> None:
        self._rest = b""
        self._token_times: list[float] = []
        self._usage = Usage()
        self._is_done = False
        self._problem: tuple[Ending, str] | None = None

    def feed(self, data: bytes, now: float) -> None:
        """`data` came at `now`; it may end within an event."""
        *lines, self._rest = (self._rest + data).split(b"\n")
        for line in lines:
            if line.startswith(b"data:"):
                self._read(line[5:].strip(), now)

    def finish(self) -> Exchange:
        """The stream is at its end."""
        ending, detail = Ending.COMPLETED, ""
        if self._problem is not None:
            ending, detail = self._problem
        elif not self._is_done:
            ending, detail = Ending.CUT, "the stream ended without [DONE] or a finish_reason"
        elif not self._token_times:
            ending, detail = Ending.CUT, "the stream ended without any output"
        return Exchange(
            ending=ending, token_times=self._token_times, usage=self._usage, detail=detail
        )

    def cut(self, detail: str) -> Exchange:
        """The connection broke; the answer may have been complete."""
        return self.finish() if self._is_done else Exchange(ending=Ending.CUT, detail=detail)

    def _read(self, data: bytes, now: float) -> None:
        if data == DONE:
            self._is_done = True
            return
        try:
            event = _decode(data)
        except msgspec.DecodeError as error:
            self._fail(Ending.STREAM_ERROR, f"an event of another form: {error}")
            return
        if event.error:
            self._fail(Ending.STREAM_ERROR, error_text(data))
            return
        if event.usage is not None:
            self._usage = _usage_of(event.usage)
        for choice in event.choices:
            if choice.has_output:
                self._token_times.append(now)
            if choice.finish_reason:
                self._is_done = True

    def _fail(self, ending: Ending, detail: str) -> None:
        self._problem = self._problem or (ending, detail)


def error_text(body: bytes) -> str:
    """The message of an error in OpenAI's or FastAPI's format, else the raw text."""
    try:
        found = msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError):
        found = body.decode(errors="replace")
    if isinstance(found, dict):
        found = found.get("error", found.get("detail", found.get("message", found)))
    if isinstance(found, dict):
        found = found.get("message", found)
    return " ".join(str(found).split())[:DETAIL_CHARACTERS]


def _usage_of(usage: _Usage) -> Usage:
    details = usage.prompt_tokens_details
    return Usage(
        prompt_tokens=usage.prompt_tokens,
        completion_tokens=usage.completion_tokens,
        cached_tokens=None if details is None else details.cached_tokens,
    )
