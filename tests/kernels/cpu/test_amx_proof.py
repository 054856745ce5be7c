"""Some hundred thousand sums by matrix tiles (AMX), in a program of its own: also of any bits."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from baton.kernels.cpu import build
from baton.kernels.cpu.library import find_compiler, library
from baton.kernels.cpu.matrix_tiles import Answer, Tiles, tiles_in_use, use_tiles

COMPILER = find_compiler()
LIBRARY = library()
FLAGS = ("-O2", "-std=c++20", "-ffp-contract=off", "-Wno-psabi", "-pthread")
FOR_TILES = ("-march=x86-64-v4", "-mavx512bf16", "-mavx512vnni")
SOURCES = ("amx_product.cpp", "amx_choice.cpp", "linear_tile.cpp")
CHECKSUM = "checksum ba63551616436239"
"""Of the emulation; in bfloat16 also of the instructions in Bochs 3.0."""


def answer_of(tiles: Tiles) -> Answer | None:
    if LIBRARY is None:
        return None
    before = tiles_in_use()
    answer = use_tiles(LIBRARY, tiles)
    use_tiles(LIBRARY, before)
    return answer


@pytest.fixture(scope="module")
def proof(tmp_path_factory: pytest.TempPathFactory) -> Path:
    assert COMPILER is not None
    made = tmp_path_factory.mktemp("amx") / "proof"
    sources = [str(path) for path in build.SOURCES.rglob("*.cpp") if path.name in SOURCES]
    folders = [f"-I{folder}" for folder in build.SOURCES.iterdir()]
    main = Path(__file__).parent / "amx" / "proof.cpp"
    command = (*COMPILER, *FLAGS, *FOR_TILES, *folders, *sources, str(main), "-o", str(made))
    subprocess.run(command, check=True, capture_output=True)
    return made


@pytest.mark.wide
@pytest.mark.parametrize(
    ("tiles", "options"), [(Tiles.EMULATED, ("emulated",)), (Tiles.AMX, ())], ids=str
)
def test_tiles_give_the_bits_that_they_give_on_any_machine(
    tiles: Tiles, options: tuple[str, ...], proof: Path
) -> None:
    if answer_of(tiles) is not Answer.IN_USE:
        pytest.skip(f"no such tiles here: {tiles.name}")

    said = subprocess.run((proof, *options), capture_output=True, text=True)

    assert said.returncode == 0, said.stdout
    assert "703296 sums, 0 wrong" in said.stdout
    assert CHECKSUM in said.stdout
