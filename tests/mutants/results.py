"""What became of each fault, kept in a file so that a run can go on where another stopped.

Several runs may share the file: each result is added to what is in it by then.
"""

from __future__ import annotations

import fcntl
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from enum import StrEnum
from pathlib import Path

from tests.mutants.fault import Fault


class Fate(StrEnum):
    KILLED = "killed"
    TIMED_OUT = "timed out"
    """Tests did not end with it, which nobody would overlook either."""
    SURVIVED = "survived"
    STALE = "stale"
    """The code has changed: there is nothing to plant it in."""

    @property
    def is_seen(self) -> bool:
        return self in (Fate.KILLED, Fate.TIMED_OUT)


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    fault: str
    digest: str
    revision: str
    tier: str
    fate: Fate
    killer: str = ""
    """The first test that failed; empty if the whole run broke."""
    seconds: float = 0.0
    note: str = ""


class Results:
    def __init__(self, path: Path) -> None:
        self._path = path
        path.parent.mkdir(parents=True, exist_ok=True)
        self._all = self._read()

    def of(self, fault: Fault, revision: str, tier: str) -> Result | None:
        """None if this wording of it was not tried. What a part of a tier sees the tier sees."""
        by_tier = {
            result.tier: result
            for result in self._all
            if (result.fault, result.digest, result.revision)
            == (fault.name, fault.digest, revision)
        }
        part = by_tier.get("test")
        return part if part is not None and part.fate.is_seen else by_tier.get(tier)

    def add(self, result: Result) -> None:
        """Instead of what was known of that fault, revision and tier."""
        key = result.fault, result.revision, result.tier
        with self._path.with_suffix(".lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            others = [one for one in self._read() if (one.fault, one.revision, one.tier) != key]
            self._all = [*others, result]
            self._path.write_text(json.dumps([asdict(one) for one in self._all], indent=1) + "\n")

    def _read(self) -> list[Result]:
        raw = json.loads(self._path.read_text()) if self._path.exists() else []
        return [Result(**{**each, "fate": Fate(each["fate"])}) for each in raw]


Column = tuple[Sequence[str], str]
"""A tier, and the revisions that it was tried at: what was seen at one of them counts."""


def table(faults: Sequence[Fault], results: Results, columns: Sequence[Column]) -> str:
    """By area, in Markdown: of how many faults how many were seen; then the survivors by name."""
    titles = list(map(_title, columns))
    lines = [
        f"| area | faults | {' | '.join(titles)} |",
        "|---" + "|--:" * (1 + len(columns)) + "|",
    ]
    areas = list(dict.fromkeys(fault.area for fault in sorted(faults, key=lambda f: f.area)))
    for area, own in [
        *((area, [fault for fault in faults if fault.area == area]) for area in areas),
        ("all", list(faults)),
    ]:
        counts = [str(_num_seen(own, results, column)) for column in columns]
        lines.append(f"| {area} | {len(own)} | {' | '.join(counts)} |")
    return "\n".join([*lines, *_survivors(faults, results, columns)])


def _num_seen(faults: Sequence[Fault], results: Results, column: Column) -> int:
    return sum(_result(fault, results, column)[1] for fault in faults)


def _title(column: Column) -> str:
    revisions, tier = column
    return f"{tier} at {' or '.join(revisions)}"


def _result(fault: Fault, results: Results, column: Column) -> tuple[str, bool]:
    """What became of it, and whether it was seen."""
    revisions, tier = column
    found = [result for each in revisions if (result := results.of(fault, each, tier)) is not None]
    is_seen = any(result.fate.is_seen for result in found)
    return (found[-1].fate if found else "not tried"), is_seen


def _survivors(
    faults: Sequence[Fault], results: Results, columns: Sequence[Column]
) -> Sequence[str]:
    lines = []
    for column in columns:
        for fault in faults:
            fate, is_seen = _result(fault, results, column)
            if not is_seen:
                lines.append(f"- {fate}, {_title(column)}: `{fault.name}` ({fault.harm})")
    return lines
