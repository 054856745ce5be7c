"""Which limit holds a pass back."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from baton.platform.instruments.ceilings import Ceilings
from baton.platform.instruments.pass_cost import Work, WorkByPart
from baton.platform.instruments.regime import (
    BatchPoint,
    Diagnosis,
    Regime,
    Timed,
    diagnose,
    flattening,
)
from baton.platform.models.model_shape import Part

CEILINGS = Ceilings(read_bytes_s=100.0, flops_s=1000.0)
WEIGHTS: WorkByPart = {Part.QKV: Work(flops=100, num_bytes=100)}
KV: WorkByPart = {**WEIGHTS, Part.ATTENTION: Work(flops=100, num_bytes=1000)}
ARITHMETIC: WorkByPart = {Part.GATE_UP: Work(flops=10_000, num_bytes=10)}


def diagnosed(
    work: WorkByPart, step_s: float, *, around_s: float = 0.0, part_s: float | None = None
) -> Diagnosis:
    parts = {} if part_s is None else {next(iter(work)): part_s}
    return diagnose(work, CEILINGS, Timed(step_s=step_s, around_s=around_s, part_s=parts))


def test_reading_weights_at_the_bandwidth_is_bandwidth_bound() -> None:
    found = diagnosed(WEIGHTS, 1.2)

    assert found.regime is Regime.BANDWIDTH
    assert found.share == pytest.approx(1 / 1.2)
    assert "weights" in found.reason
    assert "more requests" in found.experiment


def test_where_most_bytes_are_kv_narrower_kv_is_tried_first() -> None:
    found = diagnosed(KV, 12.0)

    assert found.regime is Regime.BANDWIDTH
    assert "KV" in found.reason
    assert "--kv-cache-dtype" in found.experiment


def test_arithmetic_near_the_matrix_rate_is_compute_bound() -> None:
    assert diagnosed(ARITHMETIC, 11.0).regime is Regime.COMPUTE


def test_arithmetic_is_judged_by_the_rate_of_the_weights_that_it_multiplies() -> None:
    faster = replace(CEILINGS, flops_s_by_part={Part.GATE_UP: 2000.0})
    timed = Timed(step_s=11.0, around_s=0.0, part_s={})

    found = diagnose(ARITHMETIC, faster, timed)

    assert found.regime is Regime.KERNEL
    assert found.share == pytest.approx(5 / 11)


def test_a_step_that_python_fills_is_overhead_bound() -> None:
    found = diagnosed(WEIGHTS, 3.0, around_s=1.8)

    assert found.regime is Regime.OVERHEAD
    assert "60%" in found.reason


def test_overhead_that_the_model_dwarfs_is_none() -> None:
    assert diagnosed(WEIGHTS, 1.1, around_s=0.05).regime is Regime.BANDWIDTH


def test_a_slow_kernel_is_named() -> None:
    found = diagnosed(WEIGHTS, 5.0, part_s=4.9)

    assert found.regime is Regime.KERNEL
    assert "qkv" in found.reason
    assert "qkv" in found.experiment


def points(rates: Sequence[float], work: WorkByPart) -> list[BatchPoint]:
    return [
        BatchPoint(batch=2**index, tokens_s=rate, work=work, diagnosis=diagnosed(work, 13.0))
        for index, rate in enumerate(rates)
    ]


def test_a_curve_that_doubles_does_not_flatten() -> None:
    assert flattening(points([10, 20, 39], WEIGHTS), CEILINGS).startswith("does not flatten")


def test_a_curve_flattens_where_kv_outgrows_the_weights() -> None:
    said = flattening(points([10, 19, 22], KV), CEILINGS)

    assert said.startswith("flattens from 2 requests on")
    assert "its own KV" in said


def test_a_curve_flattens_where_products_pass_the_ridge() -> None:
    said = flattening(points([10, 11], ARITHMETIC), CEILINGS)

    assert "ridge (10 FLOPs" in said


def test_the_ridge_that_is_named_is_that_of_the_part_that_takes_longest() -> None:
    faster = replace(CEILINGS, flops_s_by_part={Part.GATE_UP: 2000.0})

    assert "ridge (20 FLOPs" in flattening(points([10, 11], ARITHMETIC), faster)


def test_batches_further_apart_than_a_doubling_are_judged_by_the_doubling() -> None:
    sooner, later = points([10, 20], WEIGHTS)

    said = flattening([sooner, replace(later, batch=8)], CEILINGS)  # 1.26 a doubling

    assert said.startswith("does not flatten")


def test_one_batch_alone_says_nothing_about_the_curve() -> None:
    assert "more batches" in flattening(points([10], WEIGHTS), CEILINGS)
