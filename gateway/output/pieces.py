"""Pieces of a parsed output: content, reasoning, tool calls.

    text, in pieces --parse--> Content | Reasoning | CallStart | CallArguments ...

The arguments of a call follow its start, before anything of the next call.
"""

from __future__ import annotations

import hashlib
import json
import secrets
import string
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, field, replace
from itertools import count

from baton.gateway.output.custom_input import CustomInput

CALL_ID_CHARS = string.ascii_letters + string.digits


@dataclass(frozen=True, slots=True)
class Content:
    text: str
    spans: tuple[tuple[int, int], ...] = field(default=(), compare=False, repr=False)
    """Its places in the output: pairs of first character and end."""


@dataclass(frozen=True, slots=True)
class Reasoning:
    text: str


@dataclass(frozen=True, slots=True)
class CallStart:
    index: int
    """The call's number within its choice, from 0."""
    id: str
    name: str
    is_custom: bool = False
    """Whether the tool is a custom one, which takes a text."""


@dataclass(frozen=True, slots=True)
class CallArguments:
    index: int
    text: str
    """JSON as the model writes it: all pieces of a call together are its arguments."""
    is_text: bool = False
    """Whether `text` is a custom tool's input rather than JSON."""


Piece = Content | Reasoning | CallStart | CallArguments


def new_call_id() -> str:
    return "call_" + "".join(secrets.choice(CALL_ID_CHARS) for _ in range(24))


def call_ids(stream_id: str, choice: int) -> Iterator[str]:
    """Ids for one choice's calls: the same at every gateway that writes the stream."""
    for number in count():
        digest = hashlib.sha256(f"{stream_id}/{choice}/{number}".encode()).digest()
        yield "call_" + "".join(CALL_ID_CHARS[byte % len(CALL_ID_CHARS)] for byte in digest[:24])


class PieceWriter:
    """Collects the pieces of a parse until they are fetched."""

    def __init__(
        self,
        *,
        max_calls: int | None = None,
        custom_names: Collection[str] = (),
        call_id: Callable[[], str] = new_call_id,
        position: Callable[[], int] = int,
    ) -> None:
        """Calls beyond `max_calls` are dropped. `custom_names`: custom tools. `position`:
        characters of the output before the text that is being written."""
        self.num_calls = 0
        self._max_calls = max_calls
        self._custom_names = custom_names
        self._call_id = call_id
        self._position = position
        self._input: CustomInput | None = None
        """The input of a custom call that has begun."""
        self._arguments: list[str] = []
        """JSON of the last started call."""
        self._is_given_text = False
        self._pieces: list[Piece] = []

    def content(self, text: str) -> None:
        self.end_call()
        begin = self._position()
        self._write(Content(text, ((begin, begin + len(text)),)))

    def reasoning(self, text: str) -> None:
        self.end_call()
        self._write(Reasoning(text))

    def start_call(self, name: str) -> None:
        self.end_call()
        self.num_calls += 1
        if self._is_beyond:
            return
        self._arguments, self._is_given_text = [], False
        is_custom = name in self._custom_names
        self._pieces.append(CallStart(self.num_calls - 1, self._call_id(), name, is_custom))
        if is_custom:
            self._input = CustomInput(self.call_text)

    def arguments(self, text: str) -> None:
        """Add `text` to the arguments of the call that was started last."""
        if not self._is_beyond:
            self._arguments.append(text)
        if self._input is not None:
            self._input.feed(text)
        elif not self._is_beyond:
            self._write(CallArguments(self.num_calls - 1, text))

    def call_text(self, text: str) -> None:
        """Add `text` to the input of the last started call, of a custom tool."""
        if not self._is_beyond:
            self._is_given_text = True
            self._write(CallArguments(self.num_calls - 1, text, is_text=True))

    def end_call(self, *, is_cut: bool = False) -> None:
        """End the last call, releasing held arguments. Safe to repeat."""
        if self._input is not None:
            self._input.end(is_cut=is_cut)
            self._input = None

    @property
    def is_last_call_whole(self) -> bool:
        """Whether the last started call has all of its arguments. A custom tool's bare text, which
        has no end mark, always counts as complete."""
        if not self._arguments:
            return self._is_given_text
        try:
            json.loads("".join(self._arguments))
        except (ValueError, RecursionError):
            return False
        return True

    def drain(self) -> list[Piece]:
        pieces, self._pieces = self._pieces, []
        return pieces

    @property
    def _is_beyond(self) -> bool:
        return self._max_calls is not None and self.num_calls > self._max_calls

    def _write(self, piece: Content | Reasoning | CallArguments) -> None:
        if not piece.text:
            return
        last = self._pieces[-1] if self._pieces else None
        if (
            last is not None
            and not isinstance(last, CallStart)
            and replace(last, text="") == replace(piece, text="")
        ):
            joined = replace(last, text=last.text + piece.text)
            if isinstance(joined, Content) and isinstance(piece, Content):
                joined = replace(joined, spans=joined.spans + piece.spans)
            self._pieces[-1] = joined
        else:
            self._pieces.append(piece)
