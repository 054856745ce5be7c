"""The results of `bench.gpu`: checks, times and whole passes, as tables and as JSON."""

from __future__ import annotations

import traceback
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING

import torch

from bench.gpu.clock import Ceilings, Clock
from bench.harness.report import table

if TYPE_CHECKING:
    from bench.gpu.cases import Case
    from bench.gpu.engine import Row


PASS_HEADER = ("pass", "ms", "limit, ms", "times the limit")


@dataclass(frozen=True, slots=True)
class Checked:
    name: str
    error: float
    tolerance: float
    failure: str = ""

    @property
    def is_right(self) -> bool:
        return not self.failure and self.error <= self.tolerance


@dataclass(frozen=True, slots=True)
class Timed:
    name: str
    seconds: float
    num_bytes: float
    num_flops: float
    share: float
    """The lower bound over the measured time."""


@dataclass
class Report:
    surroundings: str
    checked: list[Checked] = field(default_factory=list)
    timed: list[Timed] = field(default_factory=list)
    rows: list[Row] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    ceilings: Ceilings | None = None
    weight_bytes: float = 0.0
    """Bytes of the 8B model's weights, for other engines that run it."""

    @property
    def is_right(self) -> bool:
        return all(each.is_right for each in self.checked)

    def check(self, case: Case) -> None:
        """Check a case, unless it is only to be timed."""
        if case.expected is None:
            return
        try:
            with torch.inference_mode():
                found = Checked(case.name, case.error(), case.tolerance)
        except Exception as error:  # any compiler error: the other cases go on
            said = f"{type(error).__name__}: {error}"[:300]
            found = Checked(case.name, float("inf"), case.tolerance, said)
        self.checked.append(found)
        if not found.is_right:  # at once, since a fault may end the process
            print(f"wrong: {found}", flush=True)

    def time(self, case: Case, clock: Clock) -> None:
        assert self.ceilings is not None
        try:
            with torch.inference_mode():
                seconds = clock.seconds(case.run)
        except Exception as error:
            self.notes.append(f"{case.name}: {type(error).__name__}: {error}"[:300])
            return
        least = self.ceilings.least_seconds(case.num_bytes, case.num_flops, case.rate)
        self.timed.append(
            Timed(case.name, seconds, case.num_bytes, case.num_flops, least / seconds)
        )

    def guard(self, part: Callable[[], None]) -> None:
        """Contain the failure of one part, and free its memory for the others."""
        try:
            with torch.inference_mode():
                part()
        except Exception:
            self.notes.append(f"{part.__name__}: {traceback.format_exc(limit=3)[-600:]}")
        with suppress(RuntimeError):  # fails as well after a device fault
            torch.cuda.empty_cache()

    def leave_out(self, name: str) -> None:
        self.notes.append(f"{name}: left out, the time is up")

    def markdown(self) -> str:
        parts = [self.surroundings, self._checks()]
        if self.ceilings is not None:
            parts.append(
                f"ceilings: {self.ceilings.bytes / 1e9:.0f} GB/s copied, "
                f"{self.ceilings.bf16 / 1e12:.0f} TFLOP/s bf16, {self.ceilings.fp8 / 1e12:.0f} fp8"
            )
        if self.timed:
            header = ("kernel", "us", "GB/s", "TFLOP/s", "share of the limit")
            parts.append(table(header, [_timed_row(each) for each in self.timed]))
        if self.rows:
            parts.append(table(PASS_HEADER, [_pass_row(each) for each in self.rows]))
        return "\n\n".join(parts + [f"- {note}" for note in self.notes])

    def _checks(self) -> str:
        header = ("kernel", "relative error", "tolerance", "passed")
        return table(
            header,
            [
                (each.name, each.error, each.tolerance, each.failure or str(each.is_right))
                for each in self.checked
            ],
        )

    def as_json(self) -> dict[str, object]:
        return {
            "surroundings": self.surroundings,
            "ceilings": None if self.ceilings is None else asdict(self.ceilings),
            "checked": [{**asdict(each), "is_right": each.is_right} for each in self.checked],
            "timed": [asdict(each) for each in self.timed],
            "passes": [{**asdict(each), "factor": each.factor} for each in self.rows],
            "notes": self.notes,
        }


def _timed_row(of: Timed) -> tuple[str | float, ...]:
    return (
        of.name,
        of.seconds * 1e6,
        of.num_bytes / of.seconds / 1e9,
        of.num_flops / of.seconds / 1e12,
        of.share,
    )


def _pass_row(of: Row) -> tuple[str | float, ...]:
    return of.name, of.seconds * 1e3, of.least_seconds * 1e3, of.factor
