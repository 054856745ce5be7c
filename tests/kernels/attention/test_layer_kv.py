"""What writes and reads the KV of a layer is chosen when the layer is made."""

from __future__ import annotations

import pytest
import torch
from tests.kernels.passes import empty_arena, sequences_of

from baton.kernels.attention import int4_attention as int4_attention
from baton.kernels.attention import layer_kv, paged_attention, paged_attention_cpu
from baton.kernels.attention.layer_kv import LayerKv
from baton.kernels.cpu.operators import runs
from baton.kernels.paging.int4_arena import Int4Arena

BFLOAT16, INT8 = torch.bfloat16, torch.int8


@pytest.mark.skipif(not runs(torch.zeros(1)), reason="there is no C++ compiler")
@pytest.mark.parametrize("items", [torch.float32, INT8], ids=str)
def test_what_attends_is_an_operator_where_there_is_one_for_the_dtype_and_width(
    items: torch.dtype,
) -> None:
    chosen = {
        (width, dtype): LayerKv.of(empty_arena(2, 1, 4, width, items), dtype).attend_by
        for width, dtype in ((256, torch.float32), (257, torch.float32), (256, torch.float16))
    }

    by_torch = paged_attention.by_torch
    assert list(chosen.values()) == [paged_attention_cpu.paged_attention, by_torch, by_torch]


def test_what_was_chosen_is_not_asked_for_again(monkeypatch: pytest.MonkeyPatch) -> None:
    arena, sequences = empty_arena(2, 1, 4, 8, torch.float32), sequences_of([[0, 1]], [(3, 3)])
    kv = LayerKv.of(arena, torch.float32)
    monkeypatch.setattr(layer_kv, "_operations", None)

    q = kv.write(torch.rand(3, 4, 8), sequences)

    assert kv.attend(q, sequences).shape == (3, 2, 8)


def test_blocks_in_four_bits_are_attended_by_torch_where_nothing_is_compiled(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(layer_kv, "_has_operators", lambda *of: False)
    units, rows = torch.zeros(2, 1, 128, dtype=torch.uint8), torch.zeros(1, 1, 1, 2, 4, 8)

    kv = LayerKv.of(Int4Arena(units, rows, torch.zeros(16, 2, 1, 8)), torch.float32)

    assert kv.attend_by is int4_attention.int4_attention


def test_heads_that_the_layer_was_not_made_for_are_refused() -> None:
    kv = LayerKv.of(empty_arena(2, 1, 4, 8, INT8), torch.float32)
    sequences = sequences_of([[0, 1]], [(3, 3)])

    with pytest.raises(ValueError, match="the KV of 1 heads of 8"):
        kv.write(torch.rand(3, 4, 8, dtype=BFLOAT16), sequences)
    with pytest.raises(ValueError, match="do not fit the KV of 1 heads of 8"):
        kv.attend(torch.rand(3, 2, 8, dtype=BFLOAT16), sequences)
    with pytest.raises(ValueError, match="do not fit the KV of 1 heads of 8"):
        kv.attend(torch.rand(3, 2, 9), sequences)
