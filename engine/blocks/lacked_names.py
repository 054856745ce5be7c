"""Names that refused reservations lacked: once such a block can be found, a prompt needs fewer new
blocks, and its reservation is worth trying again."""

from __future__ import annotations


class LackedNames:
    """The names lacked by reservations that were refused since blocks were last released. After a
    release all of them are tried again anyway."""

    def __init__(self) -> None:
        self.num_found = 0
        """How many of these names could be found later."""
        self._names: set[bytes] = set()
        """The first name that each refused reservation lacked."""
        self._noted_at = 0
        """The pool's `num_releases` when `_names` were noted."""

    def note(self, name: bytes | None, num_releases: int) -> None:
        """Note that a reservation was refused at `num_releases`, and that the first name it lacked
        is `name`; None if it lacked none."""
        if self._noted_at != num_releases:
            self._names.clear()
            self._noted_at = num_releases
        if name is not None:
            self._names.add(name)

    def come(self, name: bytes) -> None:
        """Note that `name` can be found from now on."""
        if name in self._names:
            self._names.remove(name)
            self.num_found += 1
