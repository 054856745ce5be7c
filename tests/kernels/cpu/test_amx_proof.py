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
CHOICE = ("amx_product.cpp", "amx_choice.cpp")
ATTENTION = ("attention_products.cpp", "attention_tiles.cpp", "attention_bytes.cpp")
CHECKSUM = "checksum ba63551616436239"
"""Of the emulation; in bfloat16 also of the instructions in Bochs 3.0."""


def answer_of(tiles: Tiles) -> Answer | None:
    if LIBRARY is None:
        return None
    before = tiles_in_use()
    answer = use_tiles(LIBRARY, tiles)
    use_tiles(LIBRARY, before)
    return answer


def compiled(program: str, sources: tuple[str, ...], folder: Path) -> Path:
    assert COMPILER is not None
    made = folder / "proof"
    paths = [str(path) for path in build.SOURCES.rglob("*.cpp") if path.name in sources]
    folders = [f"-I{path}" for path in build.SOURCES.iterdir()]
    main = Path(__file__).parent / "amx" / program
    command = (*COMPILER, *FLAGS, *FOR_TILES, *folders, *paths, str(main), "-o", str(made))
    subprocess.run(command, check=True, capture_output=True)
    return made


def run(proof: Path, tiles: Tiles) -> str:
    """What it said; it must have held."""
    if answer_of(tiles) is not Answer.IN_USE:
        pytest.skip(f"no such tiles here: {tiles.name}")
    options = ("emulated",) if tiles is Tiles.EMULATED else ()
    said = subprocess.run((proof, *options), capture_output=True, text=True)
    assert said.returncode == 0, said.stdout
    return said.stdout


@pytest.fixture(scope="module")
def products(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return compiled("proof.cpp", (*CHOICE, "linear_tile.cpp"), tmp_path_factory.mktemp("amx"))


@pytest.fixture(scope="module")
def attention(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return compiled("attention_proof.cpp", (*CHOICE, *ATTENTION), tmp_path_factory.mktemp("amx"))


each_kind = pytest.mark.parametrize("tiles", [Tiles.EMULATED, Tiles.AMX], ids=str)


@pytest.mark.wide
@each_kind
def test_tiles_give_the_bits_that_they_give_on_any_machine(tiles: Tiles, products: Path) -> None:
    said = run(products, tiles)

    assert "703296 sums, 0 wrong" in said
    assert CHECKSUM in said


@pytest.mark.wide
@each_kind
def test_attention_adds_by_vectors_for_few_rows_as_tiles_do_for_many(
    tiles: Tiles, attention: Path
) -> None:
    assert "1614848 sums, 0 wrong" in run(attention, tiles)
