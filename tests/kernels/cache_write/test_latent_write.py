"""Norm, rotation and the write of latents, against their definition."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import pytest
import torch
from tests.kernels.latent_attention.test_mla_attention import on_device
from tests.kernels.passes import sequences_of
from torch import Tensor

from baton.kernels.cache_write import latent_write as kernel
from baton.kernels.cache_write import latent_write_gpu as gpu
from baton.kernels.cache_write.rotation import LatentNorm, Rotation
from baton.kernels.cpu.operators import runs
from baton.kernels.paging.sequences import Sequences

HEADS, NOPE, ROTATED, LATENT, BLOCK_SIZE = 3, 10, 6, 21, 4
REQUESTS = [(1, 5), (6, 6), (3, 17), (1, 1)]

compiled = pytest.mark.skipif(not runs(torch.zeros(1)), reason="there is no C++ compiler")
each_dtype = pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
each_order = pytest.mark.parametrize("is_interleaved", [True, False], ids=["neighbours", "halves"])


@dataclass(frozen=True)
class LatentPass:
    q: Tensor
    kv: Tensor
    sequences: Sequences
    norm: LatentNorm
    rotation: Rotation
    num_blocks: int

    def written(
        self, write: Callable[..., Tensor] = kernel.latent_write, *, is_interleaved: bool
    ) -> tuple[Tensor, Tensor]:
        """q_rope and the arena."""
        width = LATENT + ROTATED
        arena = torch.zeros(self.num_blocks, 1, BLOCK_SIZE, width, dtype=self.q.dtype)
        q_rope = write(
            self.q,
            self.kv,
            arena,
            self.sequences,
            norm=self.norm,
            rotation=self.rotation,
            is_interleaved=is_interleaved,
        )
        return q_rope, arena


def random_pass(requests: Sequence[tuple[int, int]], dtype: torch.dtype) -> LatentPass:
    torch.manual_seed(11)
    num_blocks = [-(-context // BLOCK_SIZE) for _, context in requests]
    tables = torch.split(torch.randperm(sum(num_blocks)), num_blocks)
    tokens = sum(query_len for query_len, _ in requests)
    angles = torch.rand(tokens, ROTATED // 2) * 7
    return LatentPass(
        q=torch.randn(tokens, HEADS, NOPE + ROTATED).to(dtype),
        kv=torch.randn(tokens, LATENT + ROTATED).to(dtype),
        sequences=sequences_of([t.tolist() for t in tables], requests, block_size=BLOCK_SIZE),
        norm=LatentNorm((1 + 0.1 * torch.randn(LATENT)).to(dtype), 1e-6),
        rotation=(angles.cos(), angles.sin()),
        num_blocks=sum(num_blocks),
    )


@pytest.mark.parametrize(
    "write",
    [
        pytest.param(kernel.latent_write, marks=compiled, id="compiled"),
        pytest.param(gpu.latent_write, id="for GPUs"),
    ],
)
@each_order
@each_dtype
def test_it_is_as_defined(
    write: Callable[..., Tensor], dtype: torch.dtype, is_interleaved: bool
) -> None:
    made = random_pass(REQUESTS, dtype)

    found = made.written(write, is_interleaved=is_interleaved)

    expected = made.written(kernel.reference, is_interleaved=is_interleaved)
    rounding = 1e-6 if dtype is torch.float32 else 2**-7
    for ours, theirs in zip(found, expected, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=rounding, atol=rounding)


@each_order
def test_what_turns_keeps_its_length_and_nothing_else_is_touched(is_interleaved: bool) -> None:
    made = random_pass([(4, 4)], torch.float32)

    q_rope, arena = made.written(is_interleaved=is_interleaved)

    torch.testing.assert_close(q_rope.norm(dim=-1), made.q[..., NOPE:].norm(dim=-1))
    kept = arena[0, 0]
    torch.testing.assert_close(kept[:, LATENT:].norm(dim=-1), made.kv[:, LATENT:].norm(dim=-1))
    latent = made.kv[:, :LATENT] * made.norm.weight
    assert torch.nn.functional.cosine_similarity(kept[:, :LATENT], latent).min() > 1 - 1e-5


def test_scores_depend_on_the_distance_alone_in_either_order() -> None:
    """What rotary positions are for; the two orders pair other dimensions."""
    made = random_pass([(8, 8)], torch.float32)
    angles = torch.outer(torch.arange(8.0), torch.tensor([1.0, 0.3, 0.01]))
    same = LatentPass(
        made.q[:1].expand(8, -1, -1).contiguous(),
        made.kv[:1].expand(8, -1).contiguous(),
        made.sequences,
        made.norm,
        (angles.cos(), angles.sin()),
        made.num_blocks,
    )
    for is_interleaved in (True, False):
        q_rope, arena = same.written(is_interleaved=is_interleaved)
        table = same.sequences.block_tables[0]
        rotated = arena[table, 0].flatten(0, 1)[:, LATENT:]
        scores = q_rope[:, 0] @ rotated.T
        for distance in range(8):
            diagonal = scores.diagonal(-distance)
            torch.testing.assert_close(diagonal, diagonal[:1].expand(len(diagonal)))


@pytest.mark.parametrize("write", [kernel.latent_write, gpu.latent_write, kernel.reference])
def test_what_is_not_finite_is_stored_as_nan(write: Callable[..., Tensor]) -> None:
    made = random_pass([(3, 3)], torch.float32)
    made.kv[1, LATENT] = torch.inf
    made.kv[2, 3] = torch.nan

    _, arena = made.written(write, is_interleaved=True)

    assert arena[0, 0, 0].isfinite().all()
    assert arena[0, 0, 1, :LATENT].isfinite().all()
    assert arena[0, 0, 1, LATENT : LATENT + 2].isnan().all()
    assert arena[0, 0, 2, :LATENT].isnan().all()


@compiled
@each_dtype
def test_a_token_has_the_same_bits_in_any_batch(dtype: torch.dtype) -> None:
    made = random_pass([(9, 9)], dtype)
    q_rope, _ = made.written(is_interleaved=True)

    for token in range(9):
        alone = LatentPass(
            made.q[token : token + 1],
            made.kv[token : token + 1],
            sequences_of([made.sequences.block_tables[0].tolist()], [(1, token + 1)]),
            made.norm,
            (made.rotation[0][token : token + 1], made.rotation[1][token : token + 1]),
            made.num_blocks,
        )
        assert torch.equal(alone.written(is_interleaved=True)[0][0], q_rope[token])


def test_other_shapes_are_refused() -> None:
    made = random_pass([(2, 2)], torch.float32)
    narrow = LatentPass(
        made.q, made.kv[:, 1:], made.sequences, made.norm, made.rotation, made.num_blocks
    )
    with pytest.raises(ValueError, match="do not fit"):
        narrow.written(is_interleaved=True)


@pytest.mark.gpu
@each_order
@each_dtype
def test_on_a_device_it_is_as_defined(dtype: torch.dtype, is_interleaved: bool) -> None:
    made = random_pass(REQUESTS, dtype)
    expected = made.written(kernel.reference, is_interleaved=is_interleaved)
    device = on_device(made.sequences)

    q_rope = kernel.latent_write(
        made.q.cuda(),
        made.kv.cuda(),
        arena := torch.zeros_like(expected[1]).cuda(),
        device,
        norm=LatentNorm(made.norm.weight.cuda(), made.norm.eps),
        rotation=(made.rotation[0].cuda(), made.rotation[1].cuda()),
        is_interleaved=is_interleaved,
    )

    torch.testing.assert_close(q_rope.cpu(), expected[0], rtol=1e-2, atol=1e-2)
    torch.testing.assert_close(arena.cpu(), expected[1], rtol=1e-2, atol=1e-2)
