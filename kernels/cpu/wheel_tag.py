"""Where a wheel that brings compiled operators runs, as its name says it: `manylinux_2_29_x86_64`.

It is read from the libraries and not from this machine, for they may be cross-compiled, and they
ask for an older glibc than the one they were linked with. hatch_build.py reads this file by itself,
where neither Baton nor torch is installed: nothing but the standard library is imported here.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

OLDEST_GLIBC = (2, 17)
"""The oldest that pip knows by such a name for every kind of machine."""

_MACHINES = {62: "x86_64", 183: "aarch64"}  # e_machine of ELF
_SYMBOL_VERSION = re.compile(rb"\0GLIBC_(\d+)\.(\d+)[.\d]*(?=\0)")


def platform_tag(libraries: Iterable[Path]) -> str:
    """Raises ValueError unless all of them are for one known kind of machine."""
    contents = {library: library.read_bytes() for library in libraries}
    machines = {_machine(library, content) for library, content in contents.items()}
    if len(machines) != 1:
        raise ValueError(f"a wheel is for one kind of machine, and not for {sorted(machines)}")
    major, minor = max(map(_needed_glibc, contents.values()))
    return f"manylinux_{major}_{minor}_{machines.pop()}"


def _machine(library: Path, content: bytes) -> str:
    machine = _MACHINES.get(int.from_bytes(content[18:20], "little"))
    if content[:4] != b"\x7fELF" or machine is None:
        raise ValueError(f"{library} is no library for {' or '.join(_MACHINES.values())}")
    return machine


def _needed_glibc(content: bytes) -> tuple[int, int]:
    """The newest version that a symbol is asked for by: they stand among the names."""
    named = ((int(major), int(minor)) for major, minor in _SYMBOL_VERSION.findall(content))
    return max([OLDEST_GLIBC, *named])
