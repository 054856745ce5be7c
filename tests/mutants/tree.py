"""A throw-away copy of a revision, in which faults are planted and tests run."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.mutants.fault import Fault, place_of
from tests.mutants.forked import run_pytest

OPTIONS = ("-q", "-rfE", "--tb=short", "--no-header", "-p", "no:cacheprovider", "--timeout=120")


@dataclass(frozen=True, slots=True)
class Run:
    """What pytest said."""

    status: int | None
    """As a process leaves it; None: it took too long and was ended."""
    failed: tuple[str, ...]
    """Tests that did not pass, as far as they are named."""
    last_line: str


@dataclass(frozen=True, slots=True)
class Tree:
    folder: Path
    cache: Path
    """Of compiled kernels, for faults in them."""

    @contextmanager
    def planted(self, fault: Fault) -> Iterator[None]:
        """Raises StaleFault."""
        place = place_of(fault, self.folder)
        place.path.write_text(place.planted)
        try:
            yield
        finally:
            place.path.write_text(place.text)

    def test(
        self,
        tests: Sequence[str],
        options: Sequence[str],
        *,
        limit_s: float,
        has_own_kernels: bool = False,
    ) -> Run:
        """Run those of `tests` that are there. Raises FileNotFoundError if none are."""
        there = [test for test in tests if (self.folder / test.partition("::")[0]).exists()]
        if not there:
            raise FileNotFoundError(f"none of {', '.join(tests)} is in {self.folder}")
        environment = {"PYTHONPATH": f"{self.folder}/src:{self.folder}"}
        if has_own_kernels:
            environment["BATON_CACHE"] = str(self.cache)
        status, output = run_pytest([*OPTIONS, *options, *there], self.folder, environment, limit_s)
        lines = output.strip().splitlines() or [""]
        return Run(status, tuple(_failures(lines)), lines[-1])


def copy_tree(revision: str, folder: Path, cache: Path, built: Path) -> Tree:
    """The revision in `folder`, anew. `built` holds kernels that need not be compiled again."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    archive = subprocess.run(["git", "archive", revision], check=True, capture_output=True)
    subprocess.run(["tar", "-x", "-C", folder], input=archive.stdout, check=True)
    kernels = cache / "kernels"
    kernels.mkdir(parents=True, exist_ok=True)
    for made in (*built.glob("*.o"), *built.glob("*.so")):
        if not (kernels / made.name).exists():
            shutil.copyfile(made, kernels / made.name)
    return Tree(folder, cache)


def _failures(lines: Sequence[str]) -> Iterator[str]:
    """From the summary of `-rfE`."""
    for line in lines:
        kind, _, rest = line.partition(" ")
        if kind in ("FAILED", "ERROR") and rest.startswith("tests/"):
            yield rest.split(" - ")[0]
