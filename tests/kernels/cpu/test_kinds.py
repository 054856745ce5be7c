"""Which compiled kernels a CPU gets, by what it says of itself; and the words for their sums."""

from __future__ import annotations

import platform

import pytest
import torch

from baton.engine.checkpoint.install import order_of_sums
from baton.kernels.cpu import build, library
from baton.kernels.cpu.matrix_tiles import Tiles

CORTEX_A72 = "fp asimd evtstrm aes pmull sha1 sha2 crc32 cpuid"
NEOVERSE_N1 = f"{CORTEX_A72} atomics fphp asimdhp asimdrdm lrcpc dcpop asimddp ssbs"
NEOVERSE_V1 = f"{NEOVERSE_N1} sve i8mm bf16 dgh rng"
ZEN_3 = "sse2 avx avx2 bmi1 bmi2 f16c fma movbe"


@pytest.mark.parametrize(
    ("kind_of_machine", "features", "kinds"),
    [
        ("aarch64", CORTEX_A72, ("armv8-a",)),
        ("aarch64", NEOVERSE_N1, ("armv8.2-a", "armv8-a")),
        ("aarch64", NEOVERSE_V1, ("armv8.2-a-bf16", "armv8.2-a", "armv8-a")),
        ("aarch64", NEOVERSE_V1.replace("i8mm", ""), ("armv8.2-a", "armv8-a")),
        ("x86_64", ZEN_3, ("x86-64-v3", "x86-64")),
        ("riscv64", "", ()),
    ],
)
def test_a_cpu_gets_the_best_kernels_that_it_has_instructions_for(
    kind_of_machine: str, features: str, kinds: tuple[str, ...]
) -> None:
    assert build.kinds_of(kind_of_machine, features.split()) == kinds


def test_on_arm_what_is_compiled_for_this_cpu_is_its_best_kind(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    seen: list[tuple[str, ...]] = []
    monkeypatch.setattr(platform, "machine", lambda: "aarch64")
    for features in (CORTEX_A72, NEOVERSE_V1):
        monkeypatch.setattr(build, "_cpu_flags", lambda features=features: f"Features : {features}")
        seen.append(build._target_flags(build.NATIVE))

    assert seen == [("-march=armv8-a",), ("-march=armv8.2-a+dotprod+bf16+i8mm",)]


class Compiled:
    """A library as of a CPU whose bfloat16 alone adds in an order of its own."""

    def __init__(self) -> None:
        self.baton_order_of_sums = lambda is_bf16: b"NEON bf16" if is_bf16 else b""


@pytest.mark.parametrize(
    ("found", "tiles", "wide", "narrow"),
    [
        (Compiled(), Tiles.NONE, "", ", sums of NEON bf16"),
        (Compiled(), Tiles.AMX, "", ", sums of NEON bf16 and AMX tiles"),
        (None, Tiles.NONE, ", sums of torch", ", sums of torch"),
    ],
)
def test_fingerprints_have_a_word_for_sums_by_dtype(
    found: object, tiles: Tiles, wide: str, narrow: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(library, "library", lambda: found)
    monkeypatch.setattr(library, "tiles_in_use", lambda: tiles)

    assert order_of_sums("cpu", torch.float32) == wide
    assert order_of_sums("cpu", torch.bfloat16) == narrow
    assert order_of_sums("cpu", torch.float16) == ""  # torch's, wherever it is computed
    assert order_of_sums("cuda", torch.bfloat16) == ""


@pytest.mark.parametrize(
    ("named", "taken", "is_said"),
    [
        ("", ("native", "x86-64-v3", "x86-64"), False),
        ("vectors", ("native", "x86-64-v3", "x86-64"), False),
        ("x86-64", ("x86-64", "x86-64"), False),
        ("x86-64-v4", ("native", "x86-64-v3", "x86-64"), True),
    ],
)
def test_a_kind_that_is_named_is_the_only_one_if_the_cpu_is_of_it(
    named: str,
    taken: tuple[str, ...],
    is_said: bool,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(build, "supported_targets", lambda: ("native", "x86-64-v3", "x86-64"))
    monkeypatch.setenv("BATON_CPU_KERNELS", named)

    assert library._targets() == taken
    assert ("x86-64-v4 is passed over" in caplog.text) == is_said
