"""A finding of the doctor: a check, its result, and the remedy.

ok      as it should be
warn    it works, but slowly, or not for long
fail    it will not work: `baton doctor` exits non-zero
skipped it could not be checked here
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum

from baton.core.wording import count_of


class Status(StrEnum):
    OK = "ok"
    WARN = "warn"
    FAIL = "fail"
    SKIPPED = "skipped"


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    name: str
    status: Status
    seen: str
    remedy: str = ""
    where: str = "here"
    """The replica, or pair of replicas, that it is about."""


def ok(name: str, seen: str) -> Finding:
    return Finding(name=name, status=Status.OK, seen=seen)


def warn(name: str, seen: str, remedy: str) -> Finding:
    return Finding(name=name, status=Status.WARN, seen=seen, remedy=remedy)


def fail(name: str, seen: str, remedy: str) -> Finding:
    return Finding(name=name, status=Status.FAIL, seen=seen, remedy=remedy)


def skipped(name: str, seen: str, remedy: str = "") -> Finding:
    return Finding(name=name, status=Status.SKIPPED, seen=seen, remedy=remedy)


def is_healthy(findings: Iterable[Finding]) -> bool:
    return all(finding.status is not Status.FAIL for finding in findings)


def verdict(findings: Iterable[Finding]) -> str:
    """One line for a hurried reader."""
    count = Counter(finding.status for finding in findings)
    num_skipped = count.pop(Status.SKIPPED, 0)
    tail = f" ({num_skipped} skipped)" if num_skipped else ""
    num_failed, num_warned, num_all = count[Status.FAIL], count[Status.WARN], count.total()
    if num_failed:
        return f"it will not work: {num_failed} of {num_all} checks failed{tail}"
    if num_warned:
        warnings, checks = count_of(num_warned, "warning"), count_of(num_all, "check")
        return f"it will work, with {warnings} in {checks}{tail}"
    return f"all of {num_all} checks passed{tail}"
