"""Attention to the tokens that an index chose, against its definition."""

from __future__ import annotations

import pytest
import torch
from tests.kernels.latent_attention.test_choose_tokens import (
    HEADS,
    IndexPass,
    compiled,
    each_dtype,
    index_pass,
    on_threads,
)
from tests.kernels.latent_attention.test_mla_attention import on_device
from torch import Tensor

from baton.kernels.cpu.operators import Call
from baton.kernels.latent_attention import choose_tokens as choosing
from baton.kernels.latent_attention import chosen_attention as attending
from baton.kernels.latent_attention import mla_attention_gpu as gpu_attending
from baton.kernels.latent_attention.choose_tokens import choose_tokens
from baton.kernels.latent_attention.chosen_attention import chosen_attention
from baton.kernels.latent_attention.mla_attention import mla_attention

__all__ = ["on_threads"]  # a fixture

LATENT, ROTATED = 21, 6
SCALE = 0.3


def latents_of(made: IndexPass, dtype: torch.dtype) -> tuple[tuple[Tensor, Tensor], Tensor]:
    """Queries' two parts, and an arena whose blocks lie as those of the keys."""
    torch.manual_seed(7)
    q = torch.randn(len(made.q), HEADS, LATENT + ROTATED).to(dtype)
    arena = torch.randn(*made.keys.shape[:3], LATENT + ROTATED).to(dtype)
    return (q[..., :LATENT], q[..., LATENT:]), arena


@compiled
@each_dtype
def test_attention_to_some_is_as_defined(dtype: torch.dtype) -> None:
    made = index_pass(dtype=dtype)
    queries, arena = latents_of(made, dtype)
    chosen = choose_tokens(made.q, made.weights, made.keys, made.sequences, 4)
    chosen.slots[chosen.counts.unsqueeze(1) <= torch.arange(4)] = 1 << 40  # never looked at

    out = chosen_attention(*queries, arena, chosen, SCALE)

    expected = attending.reference(*queries, arena, chosen, SCALE)
    torch.testing.assert_close(out, expected, rtol=1e-5, atol=3e-2 if dtype.itemsize == 2 else 1e-5)


@compiled
@pytest.mark.usefixtures("on_threads")
@each_dtype
def test_attention_to_all_that_was_chosen_is_attention_to_all(dtype: torch.dtype) -> None:
    made = index_pass([(2, 700), (5, 5), (1, 64)], dtype)
    queries, arena = latents_of(made, dtype)
    chosen = choose_tokens(made.q, made.weights, made.keys, made.sequences, 700)

    out = chosen_attention(*queries, arena, chosen, SCALE)

    assert torch.equal(out, mla_attention(*queries, arena, made.sequences, SCALE))


@compiled
def test_how_attention_is_cut_is_told_by_the_pass_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of what operators gave, a tape uses the memory again while a late thread still reads it."""
    made, calls = index_pass(), list[Call]()
    queries, arena = latents_of(made, torch.float32)
    chosen = choose_tokens(made.q, made.weights, made.keys, made.sequences, 4)
    monkeypatch.setattr(
        "baton.kernels.latent_attention.chosen_attention_cpu.call",
        lambda one, of: calls.append(one),
    )

    chosen_attention(*queries, arena, chosen, SCALE)

    (given,) = [one.tensors() for one in calls]
    assert given.keys() == {"q_latent", "q_rope", "arena", "positions", "slots", "out"}
    assert given["positions"].data_ptr() == made.sequences.positions.data_ptr()
    assert given["slots"].data_ptr() == chosen.slots.data_ptr()


def test_torch_attends_with_a_few_tokens_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    made = index_pass()
    queries, arena = latents_of(made, torch.float32)
    chosen = choosing.reference(made.q, made.weights, made.keys, made.sequences, 4)
    expected = attending.reference(*queries, arena, chosen, SCALE)

    monkeypatch.setattr(attending, "GATHERED_ITEMS", 3 * 4 * (LATENT + ROTATED))

    found = attending.reference(*queries, arena, chosen, SCALE)
    torch.testing.assert_close(found, expected)


@each_dtype
@pytest.mark.parametrize("min_split_keys", [16, 256], ids=["split", "whole"])
def test_the_kernel_of_the_gpu_attends_to_what_was_chosen(
    dtype: torch.dtype, min_split_keys: int
) -> None:
    made = index_pass([(3, 90), (1, 3)], dtype)
    queries, arena = latents_of(made, dtype)
    chosen = choosing.reference(made.q, made.weights, made.keys, made.sequences, 50)
    chosen.slots[chosen.counts.unsqueeze(1) <= torch.arange(50)] = 1 << 40  # never looked at

    out = gpu_attending.mla_attention(
        *queries,
        arena.view(-1, 1, 1, arena.shape[-1]),
        attending.token_by_token(chosen),
        SCALE,
        min_split_keys,
    )

    expected = attending.reference(*queries, arena, chosen, SCALE)
    torch.testing.assert_close(out, expected, rtol=1e-5, atol=3e-2 if dtype.itemsize == 2 else 1e-5)


@pytest.mark.gpu
@each_dtype
def test_on_a_device_the_same_is_chosen_and_attended_to(dtype: torch.dtype) -> None:
    made = index_pass(dtype=dtype)
    queries, arena = latents_of(made, dtype)
    expected = choosing.reference(made.q, made.weights, made.keys, made.sequences, 4)
    inputs = (made.q.cuda(), made.weights.cuda(), made.keys.cuda(), on_device(made.sequences))

    chosen = choose_tokens(*inputs, 4)
    out = chosen_attention(queries[0].cuda(), queries[1].cuda(), arena.cuda(), chosen, SCALE)

    seen = torch.arange(4) < expected.counts.unsqueeze(1)
    assert torch.equal(chosen.counts.cpu(), expected.counts)
    assert torch.equal(chosen.slots.cpu()[seen], expected.slots[seen])
    attended = attending.reference(*queries, arena, expected, SCALE)
    torch.testing.assert_close(out.cpu(), attended, rtol=1e-5, atol=3e-2)


def test_an_arena_of_another_width_is_refused() -> None:
    made = index_pass()
    queries, arena = latents_of(made, torch.float32)
    chosen = choosing.reference(made.q, made.weights, made.keys, made.sequences, 4)

    with pytest.raises(ValueError, match="do not fit"):
        chosen_attention(*queries, arena[..., 1:], chosen, SCALE)
