"""What a model's output is made of: answer, reasoning, tool calls.

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
    """Where it stands in the output: first characters, and those behind the last."""


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
    """It is given a text."""


@dataclass(frozen=True, slots=True)
class CallArguments:
    index: int
    text: str
    """JSON as the model writes it: all pieces of a call together are its arguments."""
    is_text: bool = False
    """It is what a custom tool is given, as it stands."""


Piece = Content | Reasoning | CallStart | CallArguments


def new_call_id() -> str:
    return "call_" + "".join(secrets.choice(CALL_ID_CHARS) for _ in range(24))


def call_ids(stream_id: str, choice: int) -> Iterator[str]:
    """The ids of one choice's calls: the same wherever the stream is written."""
    for number in count():
        digest = hashlib.sha256(f"{stream_id}/{choice}/{number}".encode()).digest()
        yield "call_" + "".join(CALL_ID_CHARS[byte % len(CALL_ID_CHARS)] for byte in digest[:24])


class PieceWriter:
    """Collects what a parse has understood, until it is fetched."""

    def __init__(
        self,
        *,
        max_calls: int | None = None,
        custom_names: Collection[str] = (),
        call_id: Callable[[], str] = new_call_id,
        position: Callable[[], int] = int,
    ) -> None:
        """Calls beyond `max_calls` are left out. `custom_names`: tools that are given a text.
        `position`: characters of the output before the text that is being written."""
        self.num_calls = 0
        self._max_calls = max_calls
        self._custom_names = custom_names
        self._call_id = call_id
        self._position = position
        self._input: CustomInput | None = None
        """The input of a custom call that has begun."""
        self._arguments: list[str] = []
        """JSON of the call that was started last."""
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
        """Add `text` to what that call, of a custom tool, is given."""
        if not self._is_beyond:
            self._is_given_text = True
            self._write(CallArguments(self.num_calls - 1, text, is_text=True))

    def end_call(self, *, is_cut: bool = False) -> None:
        """What was held back of its arguments is all there is. Safe to repeat."""
        if self._input is not None:
            self._input.end(is_cut=is_cut)
            self._input = None

    @property
    def is_last_call_whole(self) -> bool:
        """Whether the call that was started last has all of its arguments. A text alone, which
        nothing tells the end of, is as whole as it is."""
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
