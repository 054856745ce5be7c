"""What a model's output is made of: answer, reasoning, tool calls.

    text, in pieces --parse--> Content | Reasoning | CallStart | CallArguments ...

The arguments of a call follow its start, before anything of the next call.
"""

from __future__ import annotations

import secrets
import string
from collections.abc import Callable
from dataclasses import dataclass, replace

CALL_ID_CHARS = string.ascii_letters + string.digits


@dataclass(frozen=True, slots=True)
class Content:
    text: str


@dataclass(frozen=True, slots=True)
class Reasoning:
    text: str


@dataclass(frozen=True, slots=True)
class CallStart:
    index: int
    """The call's number within its choice, from 0."""
    id: str
    name: str


@dataclass(frozen=True, slots=True)
class CallArguments:
    index: int
    text: str
    """JSON as the model writes it: all pieces of a call together are its arguments."""


Piece = Content | Reasoning | CallStart | CallArguments


def new_call_id() -> str:
    return "call_" + "".join(secrets.choice(CALL_ID_CHARS) for _ in range(24))


class PieceWriter:
    """Collects what a parse has understood, until it is fetched."""

    def __init__(
        self, *, max_calls: int | None = None, call_id: Callable[[], str] = new_call_id
    ) -> None:
        """Calls beyond `max_calls` are left out."""
        self.num_calls = 0
        self._max_calls = max_calls
        self._call_id = call_id
        self._pieces: list[Piece] = []

    def content(self, text: str) -> None:
        self._write(Content(text))

    def reasoning(self, text: str) -> None:
        self._write(Reasoning(text))

    def start_call(self, name: str) -> None:
        self.num_calls += 1
        if not self._is_beyond:
            self._pieces.append(CallStart(self.num_calls - 1, self._call_id(), name))

    def arguments(self, text: str) -> None:
        """Add `text` to the arguments of the call that was started last."""
        if not self._is_beyond:
            self._write(CallArguments(self.num_calls - 1, text))

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
            self._pieces[-1] = replace(last, text=last.text + piece.text)
        else:
            self._pieces.append(piece)
