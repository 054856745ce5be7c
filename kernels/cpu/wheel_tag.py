"""The platform tag of a wheel with compiled operators, such as `manylinux_2_29_x86_64`.

It is derived from the libraries and not from this machine, because they may be cross-compiled and
may need an older glibc than the one they were linked with. They may need a newer libstdc++ than
distributions with that glibc have; then the tag names the glibc of distributions that have it, as
the manylinux policies do. hatch_build.py loads this file on its own, where neither Baton nor torch
is installed, so it imports only the standard library.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

OLDEST_GLIBC = (2, 17)
"""The oldest glibc for which pip knows such a tag on every machine."""

_MACHINES = {62: "x86_64", 183: "aarch64"}  # e_machine of ELF
_OF_GLIBC = re.compile(rb"\0GLIBC_(\d+)\.(\d+)[.\d]*(?=\0)")
_OF_LIBSTDCXX = re.compile(rb"\0(GLIBCXX_3\.4|CXXABI_1\.3)\.(\d+)(?=\0)")
_GLIBC_BESIDE = {  # versions of libstdc++ up to this one are where there is such a glibc
    b"GLIBCXX_3.4": {19: (2, 17), 24: (2, 27), 28: (2, 31), 29: (2, 34), 30: (2, 35), 33: (2, 39)},
    b"CXXABI_1.3": {7: (2, 17), 11: (2, 27), 12: (2, 31), 13: (2, 34), 15: (2, 39)},
}


def platform_tag(libraries: Iterable[Path]) -> str:
    """Raises ValueError unless all libraries are for one known machine."""
    contents = {library: library.read_bytes() for library in libraries}
    machines = {_machine(library, content) for library, content in contents.items()}
    if len(machines) != 1:
        raise ValueError(f"a wheel is for one kind of machine, and not for {sorted(machines)}")
    needed = [need(content) for content in contents.values() for need in (glibc, _glibc_beside)]
    major, minor = max(needed)
    return f"manylinux_{major}_{minor}_{machines.pop()}"


def _machine(library: Path, content: bytes) -> str:
    machine = _MACHINES.get(int.from_bytes(content[18:20], "little"))
    if content[:4] != b"\x7fELF" or machine is None:
        raise ValueError(f"{library} is no library for {' or '.join(_MACHINES.values())}")
    return machine


def glibc(content: bytes) -> tuple[int, int]:
    """The newest version that a symbol requires, found among the names of symbols."""
    named = [(int(major), int(minor)) for major, minor in _OF_GLIBC.findall(content)]
    return max([OLDEST_GLIBC, *named])


def _glibc_beside(content: bytes) -> tuple[int, int]:
    """The glibc of distributions that have the required libstdc++."""
    oldest = OLDEST_GLIBC
    for kind, last in _OF_LIBSTDCXX.findall(content):
        fitting = [beside for known, beside in _GLIBC_BESIDE[kind].items() if int(last) <= known]
        if not fitting:
            version = f"{kind.decode()}.{int(last)}"
            raise ValueError(f"{version} is newer than we know of: set CXX to an older g++")
        oldest = max(oldest, fitting[0])
    return oldest
