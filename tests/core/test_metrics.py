"""What is counted, as Prometheus reads it."""

from __future__ import annotations

from prometheus_client import Metric
from prometheus_client.parser import text_string_to_metric_families

from baton.core.metrics import Counter, Family, Histogram, exposition, gauge


def read(*families: Family, **labels: str) -> dict[str, Metric]:
    return {one.name: one for one in text_string_to_metric_families(exposition(families, labels))}


def test_prometheus_reads_the_numbers_with_labels_of_their_own_and_of_all() -> None:
    counter = Counter("tokens_total", 'of "both"\nkinds', ("tenant",))
    counter.add(123_456_789_012, 'a "quoted\\" one\n')
    counter.add(1, "")

    found = read(counter.family(), gauge("open", "Now", 2.5, state="x"), model="m")

    assert found["tokens"].documentation == 'of "both"\nkinds'
    assert {s.labels["tenant"]: s.value for s in found["tokens"].samples} == {
        'a "quoted\\" one\n': 123_456_789_012,  # every digit, or rates are wrong
        "": 1,
    }
    [sample] = found["open"].samples
    assert (found["open"].type, sample.labels, sample.value) == (
        "gauge",
        {"model": "m", "state": "x"},
        2.5,
    )


def test_a_histogram_counts_up_to_and_with_its_bounds() -> None:
    histogram = Histogram("wait_seconds", "Waits", (0.1, 1.0), ("kind",))
    histogram.observe(0.1, "a", times=3)
    histogram.observe(0.5, "a")
    histogram.observe(7.0, "a")

    found = read(histogram.family())["wait_seconds"]

    assert found.type == "histogram"
    assert {s.labels["le"]: s.value for s in found.samples if s.name.endswith("_bucket")} == {
        "0.1": 3,
        "1.0": 4,
        "+Inf": 5,
    }
    sums = {s.name: s.value for s in found.samples if "le" not in s.labels}
    assert sums["wait_seconds_count"] == 5
    assert abs(sums["wait_seconds_sum"] - 7.8) < 1e-9


def test_what_was_never_counted_is_zero_if_nothing_tells_it_apart_and_absent_if_labels_would() -> (
    None
):
    plain, labelled = Counter("a_total", ""), Counter("b_total", "", ("x",))

    found = read(plain.family(), labelled.family())

    assert [sample.value for sample in found["a"].samples] == [0]
    assert "b" not in found
