"""Blocks and checksums on a GPU."""

from __future__ import annotations

import os
from collections.abc import Callable

import pytest
import torch
import xxhash

from baton.kernels.paging import block_copy
from baton.kernels.paging import block_copy_gpu as gpu
from baton.kernels.paging.checksum import signed
from baton.kernels.paging.checksum_gpu import checksums

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


@pytest.mark.parametrize("unit_bytes", [248, 256, 1016, 1024, 1032, 1088, 2048, 4104])
def test_checksums_are_those_of_the_package(unit_bytes: int) -> None:
    data = os.urandom(3 * unit_bytes)
    units = torch.frombuffer(bytearray(data), dtype=torch.uint8).view(3, unit_bytes).to(DEVICE)

    found = checksums(units).tolist()

    starts = range(0, len(data), unit_bytes)
    digests = [xxhash.xxh3_64_intdigest(data[at : at + unit_bytes]) for at in starts]
    assert found == [signed(each) for each in digests]


@pytest.mark.parametrize("block_bytes", [96, 4096, 20_000])
def test_blocks_are_gathered_and_scattered(block_bytes: int) -> None:
    layers = [
        torch.randint(0, 256, (9, block_bytes), dtype=torch.uint8, device=DEVICE) for _ in range(3)
    ]
    blocks = torch.tensor([7, 0, 3, 8], device=DEVICE)
    staging = torch.zeros(3, 4, block_bytes, dtype=torch.uint8, device=DEVICE)

    gpu.gather_blocks(layers, blocks, staging)
    others = [torch.zeros_like(layer) for layer in layers]
    gpu.scatter_blocks(staging, others, blocks)

    assert torch.equal(staging, torch.stack([layer[blocks] for layer in layers]))
    kept = torch.zeros(9, dtype=torch.bool, device=DEVICE).index_fill_(0, blocks, True)
    for layer, other in zip(layers, others, strict=True):
        assert torch.equal(other, layer * kept.unsqueeze(1))


def test_more_blocks_than_a_grid_is_high_are_copied_in_one_launch(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Noted(list[tuple[int, int, int]]):
        def __getitem__(self, grid: tuple[int, int, int]) -> Callable[..., None]:  # type: ignore[override]
            self.append(grid)
            return lambda *arguments, **options: None

    grids, num_blocks = Noted(), 70_000
    monkeypatch.setattr(gpu, "_copy", grids)

    gpu.gather_blocks(
        [torch.zeros(1, 8, dtype=torch.uint8)],
        torch.zeros(num_blocks, dtype=torch.int64),
        torch.zeros(1, num_blocks, 8, dtype=torch.uint8),
    )

    assert [*grids] == [(num_blocks, 1, 1)], "of the second and third dimension 65,535 at most"


def test_torch_copies_the_same_blocks() -> None:
    layers = [torch.randint(0, 256, (5, 64), dtype=torch.uint8) for _ in range(2)]
    blocks = torch.tensor([4, 1])

    staging = block_copy.gather_blocks(layers, blocks)
    others = [torch.zeros_like(layer) for layer in layers]
    block_copy.scatter_blocks(staging, others, blocks)

    assert torch.equal(staging[1, 0], layers[1][4])
    assert torch.equal(others[0][1], layers[0][1])
    assert not others[0][0].any()


def test_layers_that_are_not_alike_are_refused() -> None:
    layers = [torch.zeros(5, 64, dtype=torch.uint8), torch.zeros(5, 32, dtype=torch.uint8)]

    with pytest.raises(ValueError, match="alike"):
        block_copy.gather_blocks(layers, torch.tensor([0]))
