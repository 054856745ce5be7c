"""The public kernels hand tensors of a GPU to Triton: here of a CPU, which say otherwise."""

from __future__ import annotations

from typing import Any

import torch
from tests.kernels.gpu.pretended_gpu import tensors_on_a_gpu
from tests.kernels.paged_passes import PagedPass

from baton.kernels.attention.layer_kv import LayerKv
from baton.kernels.attention.scoring_gpu import ScoringRules
from baton.kernels.cache_write import latent_write, rope_kv_write
from baton.kernels.cache_write.rotation import HeadNorm, LatentNorm
from baton.kernels.elementwise import gelu, silu_mul
from baton.kernels.latent_attention import mla_attention
from baton.kernels.positions import rotary_angles
from baton.kernels.residual import layer_norm, rms_norm


def test_attention() -> None:
    made = PagedPass([(1, 9), (3, 7)], rules=ScoringRules(window=5, sinks=torch.ones(4)))

    with tensors_on_a_gpu():
        kv = LayerKv.of(made.arena(), made.dtype)
        out = kv.attend(made.q, made.sequences(), 5, sinks=torch.ones(4))

    torch.testing.assert_close(out, made.expected(), rtol=0, atol=1e-5)


def test_attention_to_latents() -> None:
    made = PagedPass([(1, 9), (3, 7)], entries=torch.int32)
    arena, q_latent, q_rope = torch.randn(5, 1, 4, 12), torch.randn(4, 3, 8), torch.randn(4, 3, 4)
    requests = [(made.tables[0], 1, 9), (made.tables[1], 3, 7)]

    with tensors_on_a_gpu():
        out = mla_attention.mla_attention(q_latent, q_rope, arena, made.sequences(), 0.5)

    expected = mla_attention.reference(q_latent, q_rope, arena, requests, 0.5)
    torch.testing.assert_close(out, expected, rtol=0, atol=1e-5)


def test_what_lies_before_attention_to_latents() -> None:
    made = PagedPass([(1, 9), (3, 7)], entries=torch.int32)
    q, kv = torch.randn(4, 3, 12), torch.randn(4, 8)
    arena, expected = torch.zeros(5, 1, 4, 8), torch.zeros(5, 1, 4, 8)
    angles = torch.rand(4, 2)
    rules: dict[str, Any] = {
        "norm": LatentNorm(torch.rand(4), 1e-6),
        "rotation": (angles.cos(), angles.sin()),
        "is_interleaved": True,
    }

    with tensors_on_a_gpu():
        q_rope = latent_write.latent_write(q, kv, arena, made.sequences(), **rules)

    expected_q = latent_write.reference(q, kv, expected, made.sequences(), **rules)
    torch.testing.assert_close(q_rope, expected_q, rtol=0, atol=1e-5)
    torch.testing.assert_close(arena, expected, rtol=0, atol=1e-5)


def test_what_lies_before_attention() -> None:
    made = PagedPass([(1, 9), (3, 7)], entries=torch.int32)
    qkv, arena, expected = torch.randn(4, 8, 8), torch.zeros_like(made.kv), made.kv * 0
    head_norm = HeadNorm(torch.rand(8), torch.rand(8), 1e-6)
    frequencies, positions = torch.rand(4), made.sequences().positions

    with tensors_on_a_gpu():
        rotation = rotary_angles.rotary_angles(positions, frequencies, 1.0)
        q = LayerKv.of(arena, qkv.dtype).write(
            qkv, made.sequences(), head_norm=head_norm, rotation=rotation
        )

    expected_rotation = rotary_angles.reference(positions, frequencies)
    expected_q = rope_kv_write.reference(
        qkv, expected, made.sequences(), head_norm=head_norm, rotation=expected_rotation
    )
    torch.testing.assert_close(q, expected_q, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(arena, expected, rtol=1e-5, atol=1e-5)


def test_what_is_done_with_rows() -> None:
    x, residual = torch.randn(2, 3, 20)
    weight, bias = torch.randn(2, 20)

    with tensors_on_a_gpu():
        found = (
            *rms_norm.add_rms_norm(x, residual, weight, 1e-6),
            rms_norm.rms_norm(x, weight, 1e-6),
            *layer_norm.add_layer_norm(x, residual, weight, bias, 1e-5),
            layer_norm.layer_norm(x, weight, bias, 1e-5),
            silu_mul.silu_mul(x),
            gelu.gelu_tanh_mul(x),
        )

    gates, up = x.chunk(2, dim=-1)
    expected = (
        *rms_norm.reference(x, residual, weight, 1e-6),
        rms_norm.reference(x, x * 0, weight, 1e-6)[0],
        *layer_norm.reference(x, residual, weight, bias, 1e-5),
        layer_norm.reference(x, x * 0, weight, bias, 1e-5)[0],
        silu_mul.reference(x),
        gelu.reference_tanh(gates) * up,
    )
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-5)
