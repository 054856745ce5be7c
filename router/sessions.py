"""Which conversation a prompt continues: as its caller says, or by the blocks it begins with.

    turn 1   a b c            its last whole block is c: the tail of session 1
    turn 2   a b c d e        contains the tail c: session 1, whose tail is e now
    other    a x y            shares a system prompt, but no tail: a session of its own

A tail is taken by the turn that continues it, so a prompt that is all system prompt draws one
stranger into its session at most. A session that has a name keeps it where a turn comes without.
"""

from __future__ import annotations

from collections.abc import Sequence

from baton.router.recent import Recent

MAX_TAILS = 200_000
STRETCH = 64
"""Blocks that are looked for in one go."""
MAX_BACK = 16 * STRETCH
"""Blocks that a turn may add to its conversation and be known as its continuation."""


class Sessions:
    def __init__(self, max_tails: int = MAX_TAILS) -> None:
        self._session_by_tail: Recent[bytes, str] = Recent(max_tails)
        self._tail_by_name: Recent[str, bytes] = Recent(max_tails)
        """Of sessions that have a name: what the last turn left behind."""
        self._num_begun = 0

    def of(self, names: Sequence[bytes], given: str = "") -> tuple[str, bool]:
        """Name the session of a prompt with these whole blocks, and tell whether it begins here."""
        if given:
            return given, self._is_new(given, names)
        if not names:
            return "", True
        tail = self._tail(names)
        session = None if tail is None else self._session_by_tail.pop(tail)
        is_first_turn = session is None
        if session is None:
            self._num_begun += 1
            session = f"chain-{self._num_begun}"
        self._session_by_tail.put(names[-1], session)
        return session, is_first_turn

    def known(self, names: Sequence[bytes], given: str = "") -> tuple[str, bool]:
        """The same, of a prompt that is only asked about: empty, if it would begin here."""
        if given:
            return given, self._tail_by_name.get(given) is None
        tail = self._tail(names)
        session = None if tail is None else self._session_by_tail.get(tail)
        return session or "", session is None

    def _tail(self, names: Sequence[bytes]) -> bytes | None:
        """The last of its blocks that is a session's tail: most turns add few."""
        known, num_names = self._session_by_tail, len(names)
        for end in range(num_names, max(num_names - MAX_BACK, 0), -STRETCH):
            last = names[max(end - STRETCH, 0) : end]
            if known.has_any(last):
                return next(name for name in reversed(list(last)) if name in known)
        return None

    def _is_new(self, given: str, names: Sequence[bytes]) -> bool:
        before = self._tail_by_name.pop(given)
        tail = names[-1] if names else b""
        self._tail_by_name.put(given, tail)
        if before is not None:
            self._session_by_tail.pop(before)
        if tail:
            self._session_by_tail.put(tail, given)
        return before is None
