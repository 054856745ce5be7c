"""The name of a wheel with prebuilt kernels says what its libraries ask for, and no more."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.install.resolve import GLIBC

from baton.kernels.cpu.library import library
from baton.kernels.cpu.wheel_tag import glibc, platform_tag

X86_64, AARCH64, POWER = 62, 183, 21


def fake_library(path: Path, machine: int, *names: bytes) -> Path:
    """The beginning of ELF, and names of versions where its table of strings would be."""
    header = b"\x7fELF".ljust(18, b"\0") + machine.to_bytes(2, "little")
    path.write_bytes(header + b"\0" + b"".join(name + b"\0" for name in names))
    return path


def test_a_wheel_is_named_by_the_newest_glibc_that_one_of_its_libraries_asks_for(
    tmp_path: Path,
) -> None:
    old = fake_library(tmp_path / "old.so", X86_64, b"memcpy", b"GLIBC_2.2.5", b"GLIBC_2.14")
    new = fake_library(tmp_path / "new.so", X86_64, b"GLIBC_2.29", b"GLIBC_2.9", b"GLIBC_PRIVATE")

    assert platform_tag([old]) == "manylinux_2_17_x86_64"
    assert platform_tag([old, new]) == "manylinux_2_29_x86_64"


@pytest.mark.parametrize(
    ("version", "beside"),
    [(b"GLIBCXX_3.4.22", "2_27"), (b"GLIBCXX_3.4.29", "2_34"), (b"CXXABI_1.3.12", "2_31")],
)
def test_a_wheel_is_for_distributions_that_have_the_libstdcxx_it_asks_for(
    version: bytes, beside: str, tmp_path: Path
) -> None:
    made = fake_library(tmp_path / "made.so", X86_64, b"GLIBC_2.17", b"GLIBCXX_3.4", version)

    assert platform_tag([made]) == f"manylinux_{beside}_x86_64"


def test_a_libstdcxx_that_no_distribution_has_yet_is_refused(tmp_path: Path) -> None:
    with pytest.raises(
        ValueError, match=r"GLIBCXX_3\.4\.99 is newer .*: set CXX to an older g\+\+"
    ):
        platform_tag([fake_library(tmp_path / "made.so", X86_64, b"GLIBCXX_3.4.99")])


def test_a_wheel_is_for_the_machine_that_its_libraries_were_compiled_for(tmp_path: Path) -> None:
    arm = fake_library(tmp_path / "arm.so", AARCH64, b"GLIBC_2.17")

    assert platform_tag([arm]) == "manylinux_2_17_aarch64"
    with pytest.raises(ValueError, match=r"one kind of machine, and not for \['aarch64', 'x86_64'"):
        platform_tag([arm, fake_library(tmp_path / "x86.so", X86_64)])


@pytest.mark.parametrize("machine", [POWER, 0])
def test_what_is_no_library_for_a_known_machine_is_refused(machine: int, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"what\.so is no library for x86_64 or aarch64"):
        platform_tag([fake_library(tmp_path / "what.so", machine)])


@pytest.mark.skipif(library() is None, reason="no compiled operators here")
def test_the_operators_ask_for_no_newer_glibc_than_what_baton_needs_asks_for() -> None:
    operators = library()
    assert operators is not None

    needed = glibc(Path(operators._name).read_bytes())

    assert needed <= tuple(int(part) for part in GLIBC.split("_"))
