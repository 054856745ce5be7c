"""Which compiled kernels a CPU gets, by what it says of itself; and the word for their sums."""

from __future__ import annotations

import platform

import pytest
import torch

from baton.engine.checkpoint.install import order_of_sums
from baton.kernels.cpu import build, library, operators

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


@pytest.mark.parametrize("said", ["NEON", "NEON bf16"])
def test_sums_of_arm_have_a_word_of_their_own_in_fingerprints(
    said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(operators, "runs", lambda _: True)
    monkeypatch.setattr(library, "order_of_sums", lambda: said)

    assert order_of_sums("cpu", torch.float32) == f", sums of {said}"
    assert order_of_sums("cuda", torch.float32) == ""
