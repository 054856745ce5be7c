"""The names that refused reservations lacked: with one of them there, a prompt needs less room."""

from __future__ import annotations


class LackedNames:
    """As long as nothing else gives those that were refused a reason to be tried again."""

    def __init__(self) -> None:
        self.num_found = 0
        """How many of these names came."""
        self._names: set[bytes] = set()
        """The first name that each of them lacked."""
        self._noted_at = 0

    def note(self, name: bytes | None, num_releases: int) -> None:
        """A reservation was refused that lacked `name`, if any, after so many releases of the pool:
        once there were more, all who were refused before are tried again, and note what they
        lack."""
        if self._noted_at != num_releases:
            self._names.clear()
            self._noted_at = num_releases
        if name is not None:
            self._names.add(name)

    def come(self, name: bytes) -> None:
        """`name` can be found from now on."""
        if name in self._names:
            self._names.remove(name)
            self.num_found += 1
