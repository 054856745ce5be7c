"""constraints.txt and pyproject.toml as values: what is pinned, and for whom it must install."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[2]
CONSTRAINTS = ROOT / "constraints.txt"
PROJECT = ROOT / "pyproject.toml"

MACHINES = ("x86_64", "aarch64")
NOT_PINNED = ("cuda-", "nvidia-")  # torch names their versions exactly, and no CPU build has them

_PIN = re.compile(r"([\w.-]+)==([\w.+!]+)")


@dataclass(frozen=True, slots=True)
class Target:
    """A Python on a kind of machine."""

    python: str
    machine: str

    def __str__(self) -> str:
        return f"Python {self.python}, {self.machine}"


def read_pins(text: str) -> dict[str, str]:
    """Exact versions by canonical name; a line that pins nothing exactly is refused."""
    pins: dict[str, str] = {}
    for number, line in enumerate(text.splitlines(), 1):
        pin = line.split("#")[0].strip()
        if not pin:
            continue
        match = _PIN.fullmatch(pin)
        if match is None:
            raise ValueError(f"line {number}: {pin!r} is no exact pin; write name==version")
        name = canonicalize_name(match[1])
        if name in pins:
            raise ValueError(f"line {number}: {name} is pinned twice; keep one of them")
        pins[name] = match[2]
    return pins


def supported_targets(project: Path = PROJECT) -> list[Target]:
    """Every Python that `requires-python` admits, on every kind of machine."""
    admitted = SpecifierSet(tomllib.loads(project.read_text())["project"]["requires-python"])
    pythons = [version for minor in range(100) if (version := f"3.{minor}") in admitted]
    return [Target(python, machine) for machine in MACHINES for python in pythons]


def extras(project: Path = PROJECT) -> list[str]:
    return list(tomllib.loads(project.read_text())["project"]["optional-dependencies"])


def without_a_pin(resolved: Iterable[str], pins: Iterable[str]) -> list[str]:
    """Packages that an install would take at whatever version is newest that day."""
    return sorted(name for name in set(resolved) - set(pins) if not name.startswith(NOT_PINNED))
