"""Plants faults in a throw-away copy of the product, one at a time, and says which tests see them.

    python -m tests.mutants.run [--only WORDS ...] [--tier test|all] [--tree REVISION] [--narrow]
                                [--table]

    all faults:   plant, run the tests that import the module --one fails--> killed
    those left:   plant, run the tests of all folders that could see it --one fails--> killed
                                                                        --all pass--> survived
    then          all that killed are run without a fault: who fails then as well has killed
                  nothing, and is left out when its faults are tried again

The checkout is never written to. Results go to a file, and what is in it is not run again. Ends
with status 1 if a fault survived or is stale.
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
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path

from tests.mutants.fault import Fault, StaleFault, read_faults
from tests.mutants.forked import import_foreign
from tests.mutants.results import Column, Fate, Result, Results, table
from tests.mutants.tree import Tree, copy_tree

from baton.kernels.cpu.library import cache_folder

NO_DEVICE = "not gpu and not multi_gpu"
MARKERS = {"test": f"{NO_DEVICE} and not wide", "all": NO_DEVICE}
"""What `make test` and `make test-all` run."""
NONE_COLLECTED = 5
CHECK_S = 1800.0


class Scope(StrEnum):
    NARROW = "narrow"
    WIDE = "wide"

    def of(self, fault: Fault) -> tuple[Sequence[str], float]:
        """Which tests are run, and for how long at most."""
        return (fault.tests, 600.0) if self is Scope.NARROW else (fault.folders, 3600.0)


@dataclass(slots=True, kw_only=True)
class Laboratory:
    """Of one revision and tier."""

    tree: Tree
    revision: str
    tier: str
    unreliable: set[str] = field(default_factory=set)
    """Tests that fail without a fault."""

    def try_out(self, fault: Fault, scope: Scope) -> Result:
        started = time.monotonic()
        fate, killer, note = self._fate(fault, scope)
        return Result(
            fault=fault.name,
            digest=fault.digest,
            revision=self.revision,
            tier=self.tier,
            fate=fate,
            killer=killer,
            seconds=round(time.monotonic() - started, 1),
            note=note,
        )

    def find_unreliable(self, killers: Sequence[str]) -> bool:
        """Run those that killed without a fault; whether some of them fail."""
        tests = sorted({killer for killer in killers if "::" in killer} - self.unreliable)
        if not tests:
            return False
        found = self.tree.test(tests, ["-m", MARKERS[self.tier]], limit_s=CHECK_S)
        self.unreliable |= {*found.failed}
        return bool(found.failed)

    def _fate(self, fault: Fault, scope: Scope) -> tuple[Fate, str, str]:
        """What becomes of it, by which test, and a note."""
        options = ["-x", "-m", MARKERS[self.tier]]
        for test in sorted(self.unreliable):
            options += ["--deselect", test]
        tests, limit_s = scope.of(fault)
        own = fault.needs_compiler
        try:
            with self.tree.planted(fault):
                run = self.tree.test(tests, options, limit_s=limit_s, has_own_kernels=own)
        except StaleFault as stale:
            return Fate.STALE, "", str(stale)
        killer = run.failed[0] if run.failed else ""
        if run.status is None:
            return Fate.TIMED_OUT, killer, f"after {limit_s:g} s"
        if run.status in (0, NONE_COLLECTED):
            return Fate.SURVIVED, "", ""
        return Fate.KILLED, killer, "" if killer else run.last_line


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
    columns: list[Column] = options.columns or [(revision, options.tier)]
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
        while left:
            killers: dict[Fault, str] = {}
            for scope in options.scopes:
                for fault in [fault for fault in left if fault not in killers]:
                    result = laboratory.try_out(fault, scope)
                    _tell(result, scope)
                    if result.fate is not Fate.SURVIVED or scope is Scope.WIDE:
                        killers[fault] = result.killer
                        results.add(result)
            laboratory.find_unreliable([*killers.values()])
            left = [fault for fault, killer in killers.items() if killer in laboratory.unreliable]
    finally:
        shutil.rmtree(folder)


def _tell(result: Result, scope: Scope) -> None:
    by = f" by {result.killer}" if result.killer else ""
    note = f" ({result.note})" if result.note else ""
    print(f"{result.seconds:6.1f} s  {scope}: {result.fault}: {result.fate}{by}{note}", flush=True)


def _short(revision: str) -> str:
    command = ["git", "rev-parse", "--short=7", f"{revision}^{{commit}}"]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


def _column(text: str) -> Column:
    revision, _, tier = text.rpartition(":")
    return _short(revision), tier


def _parse(arguments: Sequence[str]) -> argparse.Namespace:
    work = Path(tempfile.gettempdir()) / "baton-mutants"
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--only", nargs="*", default=[], help="areas, or parts of names")
    parser.add_argument("--tier", choices=MARKERS, default="test", help="of the tests to run")
    parser.add_argument("--tree", default="HEAD", help="the revision to plant them in")
    parser.add_argument(
        "--narrow",
        dest="scopes",
        action="store_const",
        const=[Scope.NARROW],
        default=list(Scope),
        help="do not run the tests of whole folders: what is not killed stays open",
    )
    parser.add_argument("--table", action="store_true", help="run nothing, say what is known")
    parser.add_argument(
        "--columns", nargs="*", type=_column, help="REVISION:TIER ..., those of the table"
    )
    parser.add_argument("--work", type=Path, default=work, help="where copies are made")
    parser.add_argument("--results", type=Path, default=work / "results.json")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
