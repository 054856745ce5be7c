"""A fault: a mistake that a careless engineer could make and a reviewer could miss, as data.

    faults/AREA.toml --read_faults--> Fault --place_of--> a file, its text, and its text with it

A fault is one place: its old text stands exactly once in its file. A file that was moved is found
by its name and that text, so that faults outlive folders.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from hashlib import blake2b
from pathlib import Path

FAULTS = Path(__file__).parent / "faults"
DIGEST_BYTES = 6

FOLDERS_BY_AREA = {
    "engine": ("engine", "services", "platform/instruments"),
    "models": ("engine", "kernels", "services"),
    "cpu_kernels": ("kernels", "engine", "kv_transfer"),
    "gpu_kernels": ("kernels", "engine/models"),
    "transfer": ("kv_transfer", "services", "platform", "proto", "core"),
    "services": ("services", "platform", "gateway"),
    "gateway": ("gateway", "platform", "client", "services"),
    "router": ("router", "gateway", "services", "platform"),
    "wire": ("proto", "platform", "services", "client", "kv_transfer", "gateway", "engine", "core"),
    "operations": ("platform",),
}
"""Whose tests could see a fault of the area. None survives before all of them have passed."""


class StaleFault(Exception):
    """The code is not what the fault is a mistake in: point it at the new text, or replace it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    name: str
    area: str
    file: str
    old: str
    new: str
    harm: str
    """What goes wrong, in a sentence."""
    tests: tuple[str, ...]
    """Those that import what it is in: they run first."""

    @property
    def digest(self) -> str:
        """Other for every other fault: results of an earlier wording do not count."""
        return blake2b(repr(asdict(self)).encode(), digest_size=DIGEST_BYTES).hexdigest()

    @property
    def folders(self) -> tuple[str, ...]:
        return tuple(f"tests/{folder}" for folder in FOLDERS_BY_AREA[self.area])

    @property
    def needs_compiler(self) -> bool:
        return self.file.endswith((".cpp", ".h"))


@dataclass(frozen=True, slots=True)
class Place:
    """Where a fault can be planted."""

    path: Path
    text: str
    """Of the file as it is."""
    planted: str


def read_faults(folder: Path = FAULTS) -> tuple[Fault, ...]:
    """All of them; those that compile nothing first, for they are quicker."""
    faults = [fault for path in sorted(folder.glob("*.toml")) for fault in _faults_of(path)]
    return tuple(sorted(faults, key=lambda fault: fault.needs_compiler))


def place_of(fault: Fault, tree: Path) -> Place:
    """Raises StaleFault if the old text is not there exactly once."""
    at_home = tree / fault.file
    paths = [at_home] if at_home.exists() else _namesakes(at_home.name, tree)
    holding = [(path, text) for path in paths if fault.old in (text := path.read_text())]
    num_found = sum(text.count(fault.old) for _, text in holding)
    if num_found != 1:
        raise StaleFault(f"{fault.name}: {fault.file} holds its text {num_found} times, not once")
    [(path, text)] = holding
    return Place(path, text, text.replace(fault.old, fault.new))


def _faults_of(path: Path) -> Iterator[Fault]:
    for raw in tomllib.loads(path.read_text())["fault"]:
        yield Fault(area=path.stem, **{**raw, "tests": tuple(raw["tests"])})


def _namesakes(name: str, tree: Path) -> list[Path]:
    tests = tree / "tests"
    return [path for path in tree.rglob(name) if not path.is_relative_to(tests)]
