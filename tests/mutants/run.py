"""Plants faults in a throw-away copy of the product, one at a time, and says which tests see them.

    python -m tests.mutants.run [--only WORDS ...] [--tier test|all] [--tree REVISION] [--narrow]
                                [--table]

    each alone        the tests that import its module --one fails--> killed
    those left of     the tests of all folders that could see one --all pass--> survived
    an area together    |--some fail--> each alone, those tests --one fails--> killed, else survived
                        `--it breaks--> each alone, all those tests
    then              all that killed are run without a fault: who fails then as well has killed
                      nothing, and is left out when its faults are tried again

Tests of the live Ray cluster are not run: what they alone would see counts as survived. Whatever
`make test` kills `make test-all`, which contains it, kills as well.

The checkout is never written to. Results go to a file once it is known who kills without a fault,
and what is in it is not run again. Ends with status 1 if a fault survived or is stale.
"""

from __future__ import annotations

import argparse
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

from tests.mutants.fault import Fault, StaleFault, read_faults
from tests.mutants.forked import import_foreign
from tests.mutants.results import Column, Fate, Result, Results, table
from tests.mutants.tree import Tree, copy_tree

from baton.kernels.cpu.library import cache_folder

HERE = "not gpu and not multi_gpu and not cluster and not clients"
MARKERS = {"test": f"{HERE} and not wide", "all": HERE}
"""What `make test` and `make test-all` run."""
PASSED = (0, 5)
"""What pytest ends with if no test failed: all passed, or there were none."""
ALONE_S, TOGETHER_S = 600.0, 5400.0
MAX_FAILED = 40


@dataclass(slots=True, kw_only=True)
class Laboratory:
    """Of one revision and tier."""

    tree: Tree
    revision: str
    tier: str
    unreliable: set[str] = field(default_factory=set)
    """Tests that fail without a fault."""

    def alone(self, fault: Fault, tests: Sequence[str], limit_s: float = ALONE_S) -> Result:
        """What becomes of it in these tests, up to the first that fails."""
        started = time.monotonic()
        fate, killer, note = self._fate(fault, tests, limit_s)
        return self.result(fault, fate, killer, note, time.monotonic() - started)

    def together(self, faults: Sequence[Fault]) -> list[Result]:
        """Of one area; what becomes of each in the tests of all folders that could see it."""
        started = time.monotonic()
        options = [f"--maxfail={MAX_FAILED}", *self._options()]
        own = any(fault.needs_compiler for fault in faults)
        with ExitStack() as planted:
            for fault in faults:
                planted.enter_context(self.tree.planted(fault))
            run = self.tree.test(
                faults[0].folders, options, limit_s=TOGETHER_S, has_own_kernels=own
            )
        seconds = (time.monotonic() - started) / len(faults)
        if run.status is None:
            raise TimeoutError(f"tests of {faults[0].area} took longer than {TOGETHER_S:g} s")
        if run.failed:
            return [self.alone(fault, run.failed) for fault in faults]
        if run.status not in PASSED:
            return [self.alone(fault, fault.folders, TOGETHER_S) for fault in faults]
        return [self.result(fault, Fate.SURVIVED, seconds=seconds) for fault in faults]

    def find_unreliable(self, killers: Sequence[str]) -> None:
        """Run those that killed without a fault."""
        tests = sorted({killer for killer in killers if "::" in killer} - self.unreliable)
        if tests:
            found = self.tree.test(tests, ["-m", MARKERS[self.tier]], limit_s=TOGETHER_S)
            self.unreliable |= {*found.failed}

    def result(
        self, fault: Fault, fate: Fate, killer: str = "", note: str = "", seconds: float = 0.0
    ) -> Result:
        return Result(
            fault=fault.name,
            digest=fault.digest,
            revision=self.revision,
            tier=self.tier,
            fate=fate,
            killer=killer,
            seconds=round(seconds, 1),
            note=note,
        )

    def _fate(self, fault: Fault, tests: Sequence[str], limit_s: float) -> tuple[Fate, str, str]:
        """With the test that kills it, and a note."""
        options, own = ["-x", *self._options()], fault.needs_compiler
        try:
            with self.tree.planted(fault):
                run = self.tree.test(tests, options, limit_s=limit_s, has_own_kernels=own)
        except StaleFault as stale:
            return Fate.STALE, "", str(stale)
        killer = run.failed[0] if run.failed else ""
        if run.status is None:
            return Fate.TIMED_OUT, killer, f"after {limit_s:g} s"
        if run.status in PASSED:
            return Fate.SURVIVED, "", ""
        return Fate.KILLED, killer, "" if killer else run.last_line

    def _options(self) -> list[str]:
        options = ["-m", MARKERS[self.tier]]
        for test in sorted(self.unreliable):
            options += ["--deselect", test]
        return options


def main(arguments: Sequence[str]) -> int:
    options = _parse(arguments)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # and let nothing run on
    faults = [
        fault
        for fault in read_faults()
        if not options.only or any(word in f"{fault.area} {fault.name}" for word in options.only)
    ]
    results = Results(options.results)
    revision = _short(options.tree)
    if not options.table:
        _try_all(faults, results, revision, options)
    columns: list[Column] = options.columns or [((revision,), options.tier)]
    print(table(faults, results, columns))
    found = [results.of(fault, revision, options.tier) for fault in faults]
    return int(not all(result is not None and result.fate.is_seen for result in found))


def _try_all(
    faults: Sequence[Fault], results: Results, revision: str, options: argparse.Namespace
) -> None:
    import_foreign()
    folder = options.work / f"{revision}-{options.tier}-{os.getpid()}"
    tree = copy_tree(revision, folder, options.work / "cache", cache_folder())
    laboratory = Laboratory(tree=tree, revision=revision, tier=options.tier)
    left = [fault for fault in faults if results.of(fault, revision, options.tier) is None]
    try:
        try_until_sure(left, laboratory, results, is_narrow=options.narrow)
    finally:
        shutil.rmtree(folder)


def try_until_sure(
    faults: Sequence[Fault], laboratory: Laboratory, results: Results, *, is_narrow: bool
) -> None:
    """Keep what became of each: what no test killed as it comes, the others once it is known that
    the test which killed them passes without a fault."""
    left = list(faults)
    while left:
        killed: dict[Fault, Result] = {}
        for fault, result in _try_once(left, laboratory, is_narrow=is_narrow):
            _tell(result)
            if result.killer:
                killed[fault] = result
            else:
                results.add(result)
        laboratory.find_unreliable([result.killer for result in killed.values()])
        left = []
        for fault, result in killed.items():
            if result.killer in laboratory.unreliable:
                left.append(fault)
            else:
                results.add(result)


def _try_once(
    faults: Sequence[Fault], laboratory: Laboratory, *, is_narrow: bool
) -> Iterator[tuple[Fault, Result]]:
    """Each of them; those that no test sees alone are left open, if `is_narrow`."""
    unseen: dict[str, list[Fault]] = {}
    for fault in faults:
        result = laboratory.alone(fault, fault.tests)
        if result.fate is Fate.SURVIVED:
            unseen.setdefault(fault.area, []).append(fault)
        else:
            yield fault, result
    for area in [] if is_narrow else unseen.values():
        yield from zip(area, laboratory.together(area), strict=True)


def _tell(result: Result) -> None:
    by = f" by {result.killer}" if result.killer else ""
    note = f" ({result.note})" if result.note else ""
    print(f"{result.seconds:6.1f} s  {result.fault}: {result.fate}{by}{note}", flush=True)


def _short(revision: str) -> str:
    command = ["git", "rev-parse", "--short=7", f"{revision}^{{commit}}"]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


def _column(text: str) -> Column:
    revisions, _, tier = text.rpartition(":")
    return [_short(revision) for revision in revisions.split("+")], tier


def _parse(arguments: Sequence[str]) -> argparse.Namespace:
    work = Path(tempfile.gettempdir()) / "baton-mutants"
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--only", nargs="*", default=[], help="areas, or parts of names")
    parser.add_argument("--tier", choices=MARKERS, default="test", help="of the tests to run")
    parser.add_argument("--tree", default="HEAD", help="the revision to plant them in")
    parser.add_argument(
        "--narrow", action="store_true", help="not the tests of whole folders: the rest stays open"
    )
    parser.add_argument("--table", action="store_true", help="run nothing, say what is known")
    parser.add_argument(
        "--columns", nargs="*", type=_column, help="REVISION[+REVISION ...]:TIER ..., of the table"
    )
    parser.add_argument("--work", type=Path, default=work, help="where copies are made")
    parser.add_argument("--results", type=Path, default=work / "results.json")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
