"""Metrics for Prometheus: counted where things happen, written as text when requested.

    Counter, Histogram    values by labels
    Family                one metric as it is written
    exposition            families as text (format 0.0.4), with common labels

Each process has its own metrics, so scraping all processes counts nothing twice.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import accumulate
from typing import Literal, NamedTuple

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
NO_LABELS: Mapping[str, str] = {}

Kind = Literal["counter", "gauge", "histogram"]


class Sample(NamedTuple):
    labels: Mapping[str, str]
    value: float
    suffix: str = ""
    """Appended to the name of the family: `_bucket`."""


class Family(NamedTuple):
    name: str
    kind: Kind
    help: str
    samples: Sequence[Sample]


def gauge(name: str, help: str, value: float, **labels: str) -> Family:
    """A family of one number that goes up and down."""
    return Family(name, "gauge", help, [Sample(labels, value)])


class Counter:
    """How often something happened, or how much of it, by the values of its labels."""

    def __init__(self, name: str, help: str, labels: Sequence[str] = ()) -> None:
        self._name = name
        self._help = help
        self._labels = labels
        self._count_by_values: dict[tuple[str, ...], float] = {}
        if not labels:
            self.add(0)

    def add(self, number: float, *values: str) -> None:
        """`values`: of its labels, in their order."""
        self._count_by_values[values] = self._count_by_values.get(values, 0) + number

    def family(self) -> Family:
        samples = [
            Sample(dict(zip(self._labels, values, strict=True)), count)
            for values, count in self._count_by_values.copy().items()
        ]
        return Family(self._name, "counter", self._help, samples)


class Histogram:
    """How values are spread, by upper bounds. Written by one thread, read by any."""

    def __init__(
        self, name: str, help: str, bounds: Sequence[float], labels: Sequence[str] = ()
    ) -> None:
        self._name = name
        self._help = help
        self._bounds = tuple(bounds)
        self._ends = [f"{float(bound)!r}" for bound in bounds] + ["+Inf"]
        self._labels = labels
        self._spread_by_values: dict[tuple[str, ...], _Spread] = {}
        if not labels:
            self._spread()

    def observe(self, value: float, *values: str, times: int = 1) -> None:
        """`values`: of its labels, in their order."""
        spread = self._spread_by_values.get(values) or self._spread(*values)
        spread.counts[bisect_left(self._bounds, value)] += times
        spread.total += value * times

    def family(self) -> Family:
        samples: list[Sample] = []
        for values, spread in self._spread_by_values.copy().items():
            labels = dict(zip(self._labels, values, strict=True))
            counts = tuple(accumulate(spread.counts))
            samples += [
                Sample({**labels, "le": end}, count, "_bucket")
                for end, count in zip(self._ends, counts, strict=True)
            ]
            samples += [Sample(labels, counts[-1], "_count"), Sample(labels, spread.total, "_sum")]
        return Family(self._name, "histogram", self._help, samples)

    def _spread(self, *values: str) -> _Spread:
        spread = self._spread_by_values[values] = _Spread(len(self._ends))
        return spread


class _Spread:
    __slots__ = ("counts", "total")

    def __init__(self, num_ends: int) -> None:
        self.counts = [0] * num_ends
        self.total = 0.0


def renamed(family: Family, name: str, help: str = "") -> Family:
    """Return the same samples under another name."""
    return family._replace(name=name, help=help or family.help)


def exposition(families: Iterable[Family], labels: Mapping[str, str] = NO_LABELS) -> str:
    """`labels` are those of every sample."""
    common = _written(labels)
    return "".join(line for family in families for line in _lines(family, common))


def _lines(family: Family, common: str) -> Iterator[str]:
    name, kind, help, samples = family
    if not samples:
        return
    yield f"# HELP {name} {_escaped(help)}\n# TYPE {name} {kind}\n"
    for labels, value, suffix in samples:
        own = _written(labels) if labels else ""
        both = f"{common},{own}" if common and own else common or own
        yield f"{name}{suffix}{{{both}}} {value!r}\n" if both else f"{name}{suffix} {value!r}\n"


def _written(labels: Mapping[str, str]) -> str:
    return _pairs(tuple(labels.items()))


@lru_cache(maxsize=4096)
def _pairs(labels: tuple[tuple[str, str], ...]) -> str:
    """The labels as Prometheus text. Cached: they are the same at each scrape, and most of its
    work."""
    return ",".join(
        f'{name}="{_escaped(value).replace(chr(34), chr(92) + chr(34))}"' for name, value in labels
    )


def _escaped(text: str) -> str:
    return text.replace("\\", r"\\").replace("\n", r"\n")
