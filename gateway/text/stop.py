"""Finds stop strings in text that arrives in pieces.

    stop "</end>"      piece  "yes</"   -> released "yes", held back "</"
                       piece  "b>"      -> released "</b>"
                       piece  "</end>x" -> found; nothing more is released

The strings form one Aho-Corasick automaton. Its state is the longest suffix of the text that could
still become a stop string, so its depth is exactly the number of characters to hold back. Of
several matches, the one that ends first counts, and of those the longest, however the text is
split.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field


@dataclass(slots=True, eq=False)
class _State:
    depth: int
    next: dict[str, _State] = field(default_factory=dict)
    fallback: _State | None = None
    """The longest proper suffix of this state that is also a state; None for the root."""
    match: str = ""
    """The longest stop string that ends here; empty if none does."""


class StopFinder:
    """Watches the output of one request."""

    def __init__(self, stops: Iterable[str], *, includes_stop: bool = False) -> None:
        """`includes_stop`: the released text includes the stop string."""
        self._includes_stop = includes_stop
        self._root = _State(depth=0)
        for stop in stops:
            if not stop:
                raise ValueError("an empty stop string is found everywhere")
            self._add(stop)
        self._link()
        self._state = self._root
        self._held = ""
        self.found: str | None = None
        """The stop string that was found."""

    def feed(self, piece: str) -> str:
        """The text that can be released; nothing after a stop string."""
        if self.found is not None:
            return ""
        text = self._held + piece
        for index, char in enumerate(piece, start=len(self._held) + 1):
            self._state = self._step(self._state, char)
            if self._state.match:
                self.found = self._state.match
                self._held = ""
                return text[: index if self._includes_stop else index - len(self.found)]
        num_released = len(text) - self._state.depth
        self._held = text[num_released:]
        return text[:num_released]

    def flush(self) -> str:
        """The held text, once no more follows."""
        held, self._held, self._state = self._held, "", self._root
        return held

    def _step(self, state: _State, char: str) -> _State:
        while char not in state.next:
            if state.fallback is None:
                return state
            state = state.fallback
        return state.next[char]

    def _add(self, stop: str) -> None:
        state = self._root
        for char in stop:
            state = state.next.setdefault(char, _State(depth=state.depth + 1))
        state.match = stop

    def _link(self) -> None:
        """Breadth first, so that shorter states are linked before longer ones need them."""
        queue = deque(self._root.next.values())
        for state in queue:
            state.fallback = self._root
        while queue:
            state = queue.popleft()
            assert state.fallback is not None
            for char, child in state.next.items():
                child.fallback = self._step(state.fallback, char)
                child.match = child.match or child.fallback.match
                queue.append(child)
