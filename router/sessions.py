"""Which conversation a prompt continues: as its caller names it, or by the blocks it begins with.

    turn 1   a b c            its last whole block is c: the tail of session 1
    turn 2   a b c d e        contains the tail c: session 1, whose tail is e now
    other    a x y            shares a system prompt, but no tail: a session of its own

The turn that continues a tail takes it over, so a prompt that is nothing but the system prompt
draws one stranger into its session at most. A session with a name keeps it for a turn that comes
without.
"""

from __future__ import annotations

from collections.abc import Sequence

from baton.core.block_hash import BlockNames
from baton.kernels.names.name_set import new_name_set
from baton.router.recent import Recent

MAX_TAILS = 200_000
MAX_BACK = 1024
"""Blocks that a turn may add to its conversation and be known as its continuation."""


class Sessions:
    def __init__(self, max_tails: int = MAX_TAILS) -> None:
        self._session_by_tail: Recent[bytes, str] = Recent(max_tails)
        self._tails = new_name_set()
        """The keys of `_session_by_tail`, to look for many blocks among them."""
        self._tail_by_name: Recent[str, bytes] = Recent(max_tails)
        """The last block that the last turn left behind, by the session's name, if it has one."""
        self._num_begun = 0

    def of(self, names: Sequence[bytes], given: str = "") -> tuple[str, bool]:
        """Name the session of a prompt with these whole blocks, and say whether it begins here."""
        if given:
            return given, self._is_new(given, names)
        if not names:
            return "", True
        tail = self._tail(names)
        session = None if tail is None else self._take(tail)
        is_first_turn = session is None
        if session is None:
            self._num_begun += 1
            session = f"chain-{self._num_begun}"
        self._put(names[-1], session)
        return session, is_first_turn

    def known(self, names: Sequence[bytes], given: str = "") -> tuple[str, bool]:
        """The session of a prompt that is only asked about, and whether it begins here; if so, its
        name is the given one, or empty."""
        if given:
            return given, self._tail_by_name.get(given) is None
        tail = self._tail(names)
        session = None if tail is None else self._session_by_tail.get(tail)
        return session or "", session is None

    def _tail(self, names: Sequence[bytes]) -> bytes | None:
        """The last of its blocks that is a session's tail."""
        found = self._tails.last(BlockNames.of(names), max(len(names) - MAX_BACK, 0))
        return None if found < 0 else names[found]

    def _put(self, tail: bytes, session: str) -> None:
        self._tails.add(tail)
        forgotten = self._session_by_tail.put(tail, session)
        if forgotten is not None:
            self._tails.remove(forgotten)

    def _take(self, tail: bytes) -> str | None:
        self._tails.remove(tail)
        return self._session_by_tail.pop(tail)

    def _is_new(self, given: str, names: Sequence[bytes]) -> bool:
        before = self._tail_by_name.pop(given)
        tail = names[-1] if names else b""
        self._tail_by_name.put(given, tail)
        if before is not None:
            self._take(before)
        if tail:
            self._put(tail, given)
        return before is None
