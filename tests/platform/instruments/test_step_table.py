"""Where the time of steps goes."""

from __future__ import annotations

import pytest
from rich.console import Console
from tests.platform.instruments.steps import make_step

from baton.platform.instruments.step_table import PASS, by_kind, phases, step_table


def test_phases_sum_up_to_the_step() -> None:
    step = make_step()

    found = phases(step)

    assert sum(found.values()) == pytest.approx(step.step_s)
    assert found["batch, Python"] == pytest.approx(0.001)
    assert found["bookkeeping"] == pytest.approx(0.0005)
    assert list(found)[:4] == ["schedule", "batch, Python", "qkv", "attention"]


def test_a_pass_whose_parts_are_unknown_is_told_as_a_whole() -> None:
    step = make_step(part_s={})

    found = phases(step)

    assert found[PASS] == step.pass_s
    assert sum(found.values()) == pytest.approx(step.step_s)


def test_steps_with_prompts_are_told_apart_from_those_that_only_decode() -> None:
    prefill, decode = make_step(num_tokens=100, num_requests=1), make_step()

    assert by_kind([prefill, decode, decode]) == {"prefill": [prefill], "decode": [decode, decode]}
    assert list(by_kind([decode])) == ["decode"]


def test_the_table_has_a_row_for_each_phase_and_a_share_for_each_kind() -> None:
    console = Console(width=100, record=True)

    console.print(step_table([make_step(num_tokens=100), make_step()], "a model"))

    text = console.export_text()
    assert "1 prefill" in text and "1 decode" in text
    attention = next(line for line in text.splitlines() if "attention" in line)
    assert attention.split() == ["attention", "2.000", "20.0%", "2.000", "20.0%"]
