"""Cases for every GPU kernel: inputs, expected results, bytes and FLOPs.

The same cases are checked at small sizes and timed at those of real models.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from baton.kernels.elementwise import gates_gpu as gate
from baton.kernels.elementwise.silu_mul import reference as silu_mul
from baton.kernels.paging import block_copy_gpu as block_copy
from baton.kernels.paging import checksum_gpu as checksum
from baton.kernels.paging import table_runs_gpu as table_runs
from baton.kernels.paging.checksum import device_checksums
from baton.kernels.paging.table_runs import reference as by_torch
from baton.kernels.products.linear_gpu import linear_tiles
from baton.kernels.products.quantized_weight import (
    QuantizedWeight,
    round_to_fp8,
    to_fp8,
    to_int4,
    to_int8,
)
from baton.kernels.residual import rms_norm
from baton.kernels.residual import rms_norm_gpu as norm
from baton.kernels.sampling import best_token_gpu as best_token
from baton.kernels.sampling import draw_token as draws
from baton.kernels.sampling import draw_token_gpu as draw_token
from baton.kernels.sampling.token_filter import Filters

QUANTIZED: dict[str, Callable[[Tensor], QuantizedWeight]] = {
    "int8": to_int8,
    "int4 by 32": to_int4,
    "int4 by 128": lambda weight: to_int4(weight, 128),
    "fp8": to_fp8,
    "fp8 128x128": lambda weight: to_fp8(weight, has_blocks=True),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    name: str
    run: Callable[[], Tensor]
    expected: Callable[[], Tensor] | None = None
    """None: the case is only timed; a smaller one of its kind is checked."""
    tolerance: float = 0.0
    """Relative to the largest expected value."""
    num_bytes: float = 0.0
    num_flops: float = 0.0
    rate: str = "bf16"
    """The field of `Ceilings` that bounds its arithmetic."""

    def error(self) -> float:
        """The largest error relative to the largest value; infinite if any value is NaN."""
        assert self.expected is not None
        found, wanted = self.run(), self.expected()
        if found.shape != wanted.shape:
            return float("inf")
        if not found.dtype.is_floating_point:
            return float(not torch.equal(found, wanted))
        apart = (found.double() - wanted.double()).abs().max()
        error = float(apart / wanted.double().abs().max().clamp_min(1e-6))
        return error if error == error else float("inf")


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    rows: tuple[int, ...]
    matrix: tuple[int, int]
    """N, K"""
    tokens: int
    width: int
    num_experts: int
    vocab_size: int
    num_units: int
    unit_bytes: int


SMALL = Sizes(
    rows=(1, 5, 16), matrix=(200, 384), tokens=3, width=100, num_experts=4, vocab_size=4200,
    num_units=5, unit_bytes=1088,
)  # fmt: skip
REAL = Sizes(
    rows=(1, 16), matrix=(28672, 4096), tokens=8192, width=4096, num_experts=128,
    vocab_size=152_064, num_units=1 << 17, unit_bytes=8192,
)  # fmt: skip


def cases(sizes: Sizes, device: str, dtype: torch.dtype = torch.bfloat16) -> list[Case]:
    torch.manual_seed(0)
    return [
        *_rows(sizes, device, dtype),
        *_products(sizes, device, dtype),
        *_library_products(sizes, device),
        *_sampling(sizes, device),
        *_copies(sizes, device),
    ]


def _rows(sizes: Sizes, device: str, dtype: torch.dtype) -> list[Case]:
    shape = sizes.tokens, sizes.width
    x, residual = (torch.randn(shape, device=device).to(dtype) for _ in range(2))
    weight = torch.rand(sizes.width, device=device).to(dtype)
    gate_up = torch.randn(sizes.tokens, 2 * sizes.width, device=device).to(dtype)
    return [
        Case(
            name=f"add + RMS norm {shape}",
            run=lambda: norm.rms_norm(x, residual, weight, 1e-6)[0],
            expected=lambda: rms_norm.reference(x, residual, weight, 1e-6)[0],
            tolerance=2e-2,
            num_bytes=4 * x.nbytes,
        ),
        Case(
            name=f"SwiGLU {shape}",
            run=lambda: gate.silu_mul(gate_up),
            expected=lambda: silu_mul(gate_up),
            tolerance=1e-2,
            num_bytes=1.5 * gate_up.nbytes,
        ),
    ]


def _products(sizes: Sizes, device: str, dtype: torch.dtype) -> list[Case]:
    made: list[Case] = []
    num_columns, width = sizes.matrix
    weight = (torch.randn(num_columns, width, device=device) * 0.02).to(dtype)
    quantized = {name: to(weight) for name, to in QUANTIZED.items()}
    for num_rows in sizes.rows:
        x = torch.randn(num_rows, width, device=device).to(dtype)
        rest = x.nbytes + 2 * num_rows * num_columns
        flops = 2.0 * num_rows * num_columns * width
        made.append(
            Case(
                name=f"linear {num_rows} x {num_columns} x {width}",
                run=lambda x=x: linear_tiles(x, weight),  # type: ignore[misc]
                expected=lambda x=x: (x.float() @ weight.float().T).to(dtype),  # type: ignore[misc]
                tolerance=1e-2,
                num_bytes=weight.nbytes + rest,
                num_flops=flops,
            )
        )
        made += [
            Case(
                name=f"linear {name} {num_rows} x {num_columns} x {width}",
                run=lambda x=x, w=prepared: _by_tiles(x, w),  # type: ignore[misc]
                expected=lambda x=x, w=prepared: (x.float() @ w.to_dense().float().T).to(dtype),  # type: ignore[misc]
                tolerance=2e-2,
                num_bytes=prepared.nbytes + rest,
                num_flops=flops,
            )
            for name, prepared in quantized.items()
        ]
    return made


def _library_products(sizes: Sizes, device: str) -> list[Case]:
    """Matrix products of torch, for comparison; for many rows they replace ours."""
    num_columns, width = sizes.matrix
    num_columns -= num_columns % 128
    weight = (torch.randn(num_columns, width, device=device) * 0.02).bfloat16()
    few, many = (
        torch.randn(rows, width, device=device).bfloat16() for rows in (1, max(20, sizes.tokens))
    )
    num_flops = 2.0 * len(many) * num_columns * width
    made = [
        Case(
            name=f"torch's linear {len(x)} x {num_columns} x {width}",
            run=lambda x=x: functional.linear(x, weight),  # type: ignore[misc]
            num_bytes=weight.nbytes + x.nbytes + 2.0 * len(x) * num_columns,
            num_flops=2.0 * len(x) * num_columns * width,
        )
        for x in (few, many)
    ]
    for name in ("fp8", "fp8 128x128"):
        prepared = QUANTIZED[name](weight)
        group = prepared.group[1] or width
        made.append(
            Case(
                name=f"linear {name} {len(many)} x {num_columns} x {width}",
                run=lambda prepared=prepared: prepared.linear(many, None),  # type: ignore[misc]
                expected=lambda prepared=prepared, group=group: functional.linear(  # type: ignore[misc]
                    round_to_fp8(many, group), prepared.to_dense()
                ),
                tolerance=2e-2,
                num_bytes=prepared.nbytes + many.nbytes + 2.0 * len(many) * num_columns,
                num_flops=num_flops,
                rate="fp8",
            )
        )
    return made


def _by_tiles(x: Tensor, weight: QuantizedWeight) -> Tensor:
    return linear_tiles(x, weight.items, weight.scales, group=weight.group)


def _sampling(sizes: Sizes, device: str) -> list[Case]:
    num_rows = 2 if sizes is SMALL else 16
    scores = torch.randn(num_rows, sizes.vocab_size, device=device) * 3
    rows, best = torch.arange(num_rows, device=device), scores.argmax(-1)
    heat = torch.full((num_rows,), 0.8, device=device)
    streams = torch.arange(num_rows * 4, device=device).view(num_rows, 4)
    filters = Filters(
        torch.full((num_rows,), 50, device=device),
        torch.full((num_rows,), 0.9, device=device),
        torch.full((num_rows,), draws.LEAST_P, device=device),
    )
    return [
        Case(
            name=f"greedy {num_rows} x {sizes.vocab_size}",
            run=lambda: best_token.best_finite_token(scores)[0],
            expected=lambda: scores.argmax(-1),
            num_bytes=scores.nbytes,
        ),
        Case(
            name=f"top-k, top-p, draw {num_rows} x {sizes.vocab_size}",
            run=lambda: draw_token.draw_token(scores, rows, best, heat, filters, streams),
            expected=lambda: draws.draw_related(draws.relate(scores, heat), filters, streams),
            num_bytes=scores.nbytes,
        ),
    ]


def _copies(sizes: Sizes, device: str) -> list[Case]:
    num_layers, num_blocks, is_small = 3, sizes.num_units, sizes is SMALL
    units = torch.randint(0, 256, (num_blocks, sizes.unit_bytes), dtype=torch.uint8, device=device)
    layers = [units.clone() for _ in range(num_layers)]
    blocks = torch.randperm(num_blocks, device=device)[: max(1, num_blocks // 2)]
    staging = torch.empty(
        num_layers, len(blocks), sizes.unit_bytes, dtype=torch.uint8, device=device
    )

    def gather() -> Tensor:
        block_copy.gather_blocks(layers, blocks, staging)
        return staging

    tables = torch.zeros(64, 8192, dtype=torch.int32, device=device)  # contexts of 131,072 tokens
    grown = (64, 1 if is_small else 8192)
    words = _runs(*grown, width=tables.shape[1]).to(device)

    def put() -> Tensor:
        table_runs.write_runs(tables, words, *grown)
        return tables

    return [
        Case(
            name=f"block tables, {grown[0]} runs of {grown[1]}",
            run=put,
            expected=lambda: _put_by_torch(torch.zeros_like(tables), words, grown[0]),
            num_bytes=2 * words.nbytes,
        ),
        Case(
            name=f"checksums of {num_blocks} x {sizes.unit_bytes} bytes",
            run=lambda: checksum.checksums(units),
            expected=(lambda: device_checksums(units.cpu()).to(device)) if is_small else None,
            num_bytes=units.nbytes,
        ),
        Case(
            name=f"block copy, {num_layers} layers of {len(blocks)} x {sizes.unit_bytes} bytes",
            run=gather,
            expected=lambda: torch.stack([layer[blocks] for layer in layers]),
            num_bytes=2 * staging.nbytes,
        ),
    ]


def _runs(count: int, length: int, width: int) -> Tensor:
    """Equally many entries at the end of each of `count` tables."""
    rows = torch.arange(count, dtype=torch.int32)
    first, lengths = rows * width + width - length, torch.full_like(rows, length)
    runs = torch.stack((first, lengths, rows * length), dim=1).flatten()
    return torch.cat((runs, torch.arange(count * length, dtype=torch.int32)))


def _put_by_torch(tables: Tensor, words: Tensor, num_runs: int) -> Tensor:
    put = tables.cpu()
    by_torch(put, words.cpu(), num_runs)
    return put.to(tables.device)
