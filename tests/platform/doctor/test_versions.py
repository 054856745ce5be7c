"""What is installed is compared with what Baton wants, and between machines."""

from __future__ import annotations

from packaging.specifiers import SpecifierSet
from tests.platform.nodes import NODE, VERSIONS, node

from baton.platform.doctor.finding import Status
from baton.platform.doctor.versions import (
    check_equal_versions,
    check_versions,
    wanted_versions,
)


def test_versions_in_range_are_listed() -> None:
    found = check_versions(
        VERSIONS, {"torch": SpecifierSet(">=2.11"), "ray": SpecifierSet("<2.61")}
    )

    assert found.status is Status.OK
    assert "torch 2.13.0+cu126" in found.seen


def test_versions_out_of_range_are_named_with_what_is_wanted() -> None:
    found = check_versions(VERSIONS, {"ray": SpecifierSet(">=2.61")})

    assert found.status is Status.FAIL
    assert found.seen == "ray 2.60.0 (wants >=2.61)"


def test_this_installation_is_as_it_wants_to_be() -> None:
    assert "torch" in wanted_versions()
    assert "ray" in wanted_versions()


def test_equal_machines_are_equal_whatever_their_last_python_digit() -> None:
    other = node(versions={**VERSIONS, "python": "3.11.9"})

    assert check_equal_versions([("here", NODE), ("decode-1", other)]).status is Status.OK


def test_another_torch_is_a_warning_and_another_baton_a_failure() -> None:
    torch = node(versions={**VERSIONS, "torch": "2.12.0"})
    baton = node(versions={**VERSIONS, "baton-llm": "0.2.0"})

    differs = check_equal_versions([("here", NODE), ("decode-1", torch)])
    assert differs.status is Status.WARN
    assert differs.seen == "torch 2.13.0+cu126 at here but 2.12.0 at decode-1"
    assert check_equal_versions([("here", NODE), ("decode-1", baton)]).status is Status.FAIL
