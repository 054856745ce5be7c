"""The operators of 64-bit ARM, cross-compiled and run by an emulator, for each kind of its CPUs.

Each program compares with what is defined (neon/proof.cpp), and prints digests of all that it
computed. Whole numbers and float32 are the same on all kinds, and those without bf16 of their own
give the bits of x86-64 with AVX2, which the compiler of this machine makes the program for, too.
"""

from __future__ import annotations

import platform
import shutil
import subprocess
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from baton.kernels.cpu import build
from baton.kernels.cpu.library import find_compiler

ARM = shutil.which("aarch64-linux-gnu-g++")
EMULATOR = shutil.which("qemu-aarch64") or shutil.which("qemu-aarch64-static")
COMPILER = find_compiler()
CPUS = {"armv8-a": "cortex-a72", "armv8.2-a": "neoverse-n1", "armv8.2-a-bf16": "max"}
pytestmark = pytest.mark.timeout(1200)  # four programs, of 20 s of compiling each
SOURCES = (
    "amx_product", "arena", "attention_products", "attention_softmax", "attention_tiles",
    "checksum", "elementwise", "int4_linear", "int4_product", "int4_weight", "int8_linear",
    "int8_product", "int8_rows", "int8_weight", "linear", "linear_pack", "linear_tile",
    "paged_attention", "placing", "rms_norm", "run", "team",
)  # fmt: skip
OF_BF16 = {"linear_bf16", "attention_bf16"}
"""What BFDOT and BFMMLA round in another way."""


def program(folder: Path, compiler: str, flags: tuple[str, ...]) -> Path:
    """Proof for a kind of CPU, with flags as the library's are."""
    folder.mkdir()
    includes = [f"-I{family}" for family in build.SOURCES.iterdir()]
    command = [compiler, *build.FLAGS, *flags, *includes]
    main = Path(__file__).parent / "neon" / "proof.cpp"
    sources = [path for path in build.SOURCES.rglob("*.cpp") if path.stem in SOURCES]

    def compile_one(source: Path) -> None:
        into = f"{folder}/{source.stem}.o"
        subprocess.run([*command, "-c", str(source), "-o", into], check=True, capture_output=True)

    with ThreadPoolExecutor(build.num_threads()) as threads:
        list(threads.map(compile_one, (*sources, main)))
    objects = [str(path) for path in folder.glob("*.o")]
    made = folder / "proof"
    subprocess.run([compiler, "-static", "-pthread", *objects, "-o", str(made)], check=True)
    return made


def digests(command: list[str]) -> dict[str, str]:
    said = subprocess.run(command, capture_output=True, text=True)
    assert said.returncode == 0, said.stdout + said.stderr
    *lines, last = said.stdout.splitlines()
    assert last.endswith("checks, 0 wrong"), last
    return dict(line.rsplit(" ", 1) for line in lines)


@pytest.fixture(scope="module")
def of_arm(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, Mapping[str, str]]:
    if ARM is None or EMULATOR is None:
        pytest.skip("apt-get install g++-aarch64-linux-gnu qemu-user")
    folder = tmp_path_factory.mktemp("neon")
    found: dict[str, Mapping[str, str]] = {}
    for kind, (flags, _) in build.PORTABLE["aarch64"].items():
        made = program(folder / kind, ARM, flags)
        found[kind] = digests([EMULATOR, "-cpu", CPUS[kind], str(made)])
    return found


@pytest.mark.wide
def test_every_kind_of_arm_computes_what_is_defined_and_only_bf16_of_its_own_differs(
    of_arm: Mapping[str, Mapping[str, str]],
) -> None:
    oldest = of_arm["armv8-a"]
    differing = {
        kind: {name for name in oldest if digests_of_kind[name] != oldest[name]}
        for kind, digests_of_kind in of_arm.items()
    }

    assert differing == {"armv8-a": set(), "armv8.2-a": set(), "armv8.2-a-bf16": OF_BF16}


@pytest.mark.wide
@pytest.mark.skipif(platform.machine() != "x86_64", reason="held to x86-64")
def test_arm_without_bf16_gives_the_bits_of_avx2(
    of_arm: Mapping[str, Mapping[str, str]], tmp_path: Path
) -> None:
    if COMPILER is None or "x86-64-v3" not in build.supported_targets():
        pytest.skip("no compiler, or no AVX2")
    flags, _ = build.PORTABLE["x86_64"]["x86-64-v3"]

    of_x86 = digests([str(program(tmp_path / "v3", COMPILER[0], flags))])

    assert of_x86 == of_arm["armv8-a"]
