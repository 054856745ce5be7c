"""The pins are exact, complete, and for the Pythons that make and pip both admit."""

from __future__ import annotations

import re
import tomllib

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from tests.install.pins import CONSTRAINTS, PROJECT, ROOT, read_pins, supported_targets
from tests.install.resolve import Resolution, drift


def requirements() -> list[Requirement]:
    project = tomllib.loads(PROJECT.read_text())["project"]
    extras = [line for lines in project["optional-dependencies"].values() for line in lines]
    return [Requirement(line) for line in project["dependencies"] + extras]


def test_everything_that_the_project_asks_for_has_a_pin_that_it_admits() -> None:
    pins = read_pins(CONSTRAINTS.read_text())

    wanted = {asked.name: asked.specifier for asked in requirements()}

    assert len(wanted) > 40
    refused = [
        name for name in wanted if pins.get(canonicalize_name(name), "0") not in wanted[name]
    ]
    assert refused == []


def test_make_admits_the_pythons_that_pip_admits() -> None:
    bounds = re.search(r"\(3, (\d+)\) <= sys.*< \(3, (\d+)\)", (ROOT / "Makefile").read_text())

    assert bounds is not None
    first, end = map(int, bounds.groups())
    assert {target.python for target in supported_targets()} == {
        f"3.{n}" for n in range(first, end)
    }
    assert (first, end) == (11, 15)


@pytest.mark.parametrize("line", ["torch>=2.11", "torch", "torch==2.*", "torch==2.13.0; extra"])
def test_a_line_that_pins_nothing_exactly_is_refused(line: str) -> None:
    with pytest.raises(ValueError, match=r"line 2: .* is no exact pin"):
        read_pins(f"# versions\n{line}\n")


def test_a_package_pinned_under_two_spellings_is_refused() -> None:
    with pytest.raises(ValueError, match="rpds-py is pinned twice"):
        read_pins("rpds-py==1.0\nrpds_py==2.0\n")


def test_drift_names_what_lacks_a_pin_and_what_has_one_for_nothing() -> None:
    resolved = {"torch": "2.13.0", "idna": "3.20", "nvidia-nccl-cu13": "2.29.7"}
    found = Resolution(supported_targets()[0], resolved)

    faults = drift([found], {"torch": "2.13.0", "tomlkit": "0.15.2"})

    assert faults == [
        "idna is installed but not pinned: add idna==3.20",
        "tomlkit is pinned but never installed: remove it",
    ]
