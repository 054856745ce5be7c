"""What a rank with whole experts reads, and keeps."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from bench.quantization.checkpoint_writer import LAYOUTS, write_layout
from tests.engine.prepared_weights import as_tensor, weights_of
from tests.tiny_checkpoints import make_deepseek_v3, make_mixtral, make_qwen3_moe

from baton.engine.checkpoint.load import LoadedModel, load_model
from baton.engine.layers.moe import Experts
from baton.engine.mesh.mesh import Mesh
from baton.engine.mesh.ranks import ONE_RANK, MeshGroups
from baton.kernels.cpu.library import library
from baton.kernels.experts.packed_quantized_experts import PackedQuantizedExperts


def groups_of(rank: int, mesh: Mesh) -> MeshGroups:
    member: Any = SimpleNamespace(rank=rank, size=mesh.size)
    return replace(ONE_RANK, mesh=mesh, everyone=member, tensor=member, expert=member)


def load_rank(folder: Path, rank: int, mesh: Mesh, **options: Any) -> LoadedModel:
    return load_model(folder, groups=groups_of(rank, mesh), **options)


@pytest.mark.parametrize("make", [make_mixtral, make_qwen3_moe, make_deepseek_v3])
@pytest.mark.parametrize("quantize", ["none", "int8"])
def test_a_rank_has_the_experts_of_its_slots(
    make: Callable[[Path], Path], quantize: str, tmp_path: Path
) -> None:
    folder, mesh = make(tmp_path), Mesh(tensor=2, expert=2, redundant_experts=1)
    whole = dict(weights_of(load_model(folder, quantize=quantize).model))

    for rank in range(2):
        loaded = load_rank(folder, rank, mesh, quantize=quantize)
        assert loaded.held is not None
        for name, experts in loaded.held.maps.items():
            own = dict(weights_of(loaded.model))
            for part in ("gate_up", "down"):
                found = as_tensor(own[f"{name}.{part}"])
                wanted = as_tensor(whole[f"{name}.{part}"])[list(experts.of_rank(rank))]
                torch.testing.assert_close(found, wanted, rtol=0, atol=0)


@pytest.mark.parametrize("size", [2, 4])
def test_experts_of_others_are_not_read(size: int, tmp_path: Path) -> None:
    folder = make_mixtral(tmp_path, num_local_experts=8, intermediate_size=1024)
    of_one: list[tuple[int, int]] = []
    of_rank: list[tuple[int, int]] = []
    load_model(folder, progress=lambda *read: of_one.append(read))

    load_rank(
        folder,
        size - 1,
        Mesh(tensor=size, expert=size),
        progress=lambda *read: of_rank.append(read),
    )

    assert of_rank[-1][0] == of_rank[-1][1]
    assert of_rank[-1][1] < 1.1 * of_one[-1][1] / size


@pytest.mark.skipif(library() is None, reason="no compiled operators here")
def test_experts_that_come_quantised_stay_so_and_say_so(tmp_path: Path) -> None:
    original = make_qwen3_moe(
        tmp_path / "wide", hidden_size=128, intermediate_size=128, moe_intermediate_size=128
    )
    folder = write_layout(original, tmp_path / "model", LAYOUTS["int8 channel"])

    alone = load_model(folder, dtype="bfloat16")
    sliced = load_rank(folder, 0, Mesh(tensor=2), dtype="bfloat16")
    whole = load_rank(folder, 0, Mesh(tensor=2, expert=2), dtype="bfloat16")

    def kinds(loaded: LoadedModel) -> set[bool]:
        every = (part for part in loaded.model.modules() if isinstance(part, Experts))
        return {isinstance(part.gate_up, PackedQuantizedExperts) for part in every}

    assert (kinds(alone), kinds(sliced), kinds(whole)) == ({True}, {False}, {True})
    assert len({loaded.info.fingerprint for loaded in (alone, sliced, whole)}) == 3
