"""Writes checkpoints in quantised formats, with every matrix of the blocks rounded to the nearest.

    python -m bench.quantization.checkpoint_writer FOLDER INTO LAYOUT

There is no calibration; GPTQ, AWQ and the like choose scales and rounding by calibration data, and
lose less. Written from the published formats, independently of the readers in engine/checkpoint.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from bench.harness.command_line import benchmark_parser

E4M3_LIMIT = 448.0
E2M1 = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
AWQ_ORDER = (0, 2, 4, 6, 1, 3, 5, 7)

Parts = dict[str, Tensor]
"""Tensors by the suffix after the module's name."""


@dataclass(frozen=True)
class Rounded:
    """W is about (q - zero) * scale."""

    q: Tensor  # [N, K], from 0 to 2^bits - 1
    zeros: Tensor  # [N, G]
    scales: Tensor  # [N, G]
    groups: Tensor  # [K]


def round_groups(
    weight: Tensor, bits: int, group: int, *, is_symmetric: bool, order: Tensor | None = None
) -> Rounded:
    """`group` inputs share a scale: neighbours, or those that are neighbours in `order`."""
    width = weight.shape[1]
    rank = torch.arange(width) if order is None else order.argsort()
    groups = rank // group
    top = 2**bits - 1
    q, zeros, scales = torch.empty_like(weight), [], []
    for index in range(int(groups.max()) + 1):
        some = weight[:, groups == index]
        if is_symmetric:
            scale = (some.abs().amax(1) / (top // 2)).half().float().clamp(min=1e-6)
            zero = torch.full_like(scale, (top + 1) // 2)
        else:
            low, high = some.amin(1).clamp(max=0), some.amax(1).clamp(min=0)
            scale = ((high - low) / top).half().float().clamp(min=1e-6)
            zero = (-low / scale).round().clamp(0, top)
        q[:, groups == index] = (some / scale[:, None] + zero[:, None]).round().clamp(0, top)
        zeros.append(zero)
        scales.append(scale)
    return Rounded(q.int(), torch.stack(zeros, 1).int(), torch.stack(scales, 1), groups.int())


def pack_columns(items: Tensor, bits: int, order: tuple[int, ...] | None = None) -> Tensor:
    """[R, C] -> int32 [R, C bits / 32]; `order`: by position in a word, from the lowest bits, the
    item that it holds."""
    count = 32 // bits
    places = order or tuple(range(count))
    lanes = items.long().reshape(len(items), -1, count)
    word = torch.zeros(lanes.shape[:2], dtype=torch.int64)
    for place, item in enumerate(places):
        word |= lanes[:, :, item] << (bits * place)
    return torch.where(word >= 2**31, word - 2**32, word).int()


def gptq(
    weight: Tensor,
    bits: int = 4,
    group: int = 128,
    *,
    is_symmetric: bool = True,
    order: Tensor | None = None,
    is_v2: bool = False,
) -> Parts:
    found = round_groups(weight, bits, group, is_symmetric=is_symmetric, order=order)
    zeros = pack_columns(found.zeros.T, bits)
    ones = sum(1 << at for at in range(0, 32, bits))
    return {
        "qweight": pack_columns(found.q, bits).T.contiguous(),
        "qzeros": zeros if is_v2 else zeros - torch.tensor(ones, dtype=torch.int32),
        "scales": found.scales.T.half().contiguous(),
        "g_idx": found.groups,
    }


def awq(weight: Tensor, group: int = 128) -> Parts:
    found = round_groups(weight, 4, group, is_symmetric=False)
    return {
        "qweight": pack_columns(found.q.T, 4, AWQ_ORDER),
        "qzeros": pack_columns(found.zeros.T, 4, AWQ_ORDER),
        "scales": found.scales.T.half().contiguous(),
    }


def packed(weight: Tensor, bits: int = 4, group: int = 128, *, is_symmetric: bool = True) -> Parts:
    found = round_groups(weight, bits, group, is_symmetric=is_symmetric)
    parts = {
        "weight_packed": pack_columns(found.q, bits),
        "weight_scale": found.scales,
        "weight_shape": torch.tensor(weight.shape),
    }
    if not is_symmetric:
        parts["weight_zero_point"] = pack_columns(found.zeros.T, bits).T.contiguous()
    return parts


def int8_channels(weight: Tensor) -> Parts:
    scales = weight.abs().amax(1, keepdim=True).clamp(min=1e-6) / 127
    return {"weight": (weight / scales).round().to(torch.int8), "weight_scale": scales}


def fp8_channels(weight: Tensor) -> Parts:
    scales = weight.abs().amax(1, keepdim=True).clamp(min=1e-6) / E4M3_LIMIT
    return {"weight": to_e4m3(weight / scales), "weight_scale": scales}


def fp8_tensor(weight: Tensor) -> Parts:
    scale = weight.abs().amax().clamp(min=1e-6) / E4M3_LIMIT
    return {
        "weight": to_e4m3(weight / scale),
        "weight_scale": scale,
        "input_scale": torch.tensor(1.0),
    }


def fp8_blocks(weight: Tensor, block: int = 128) -> Parts:
    scales = torch.empty(-(-weight.shape[0] // block), -(-weight.shape[1] // block))
    items = torch.empty(weight.shape, dtype=torch.float8_e4m3fn)
    for i, j in torch.cartesian_prod(*map(torch.arange, scales.shape)).tolist():
        at = (slice(i * block, (i + 1) * block), slice(j * block, (j + 1) * block))
        scales[i, j] = weight[at].abs().amax().clamp(min=1e-6) / E4M3_LIMIT
        items[at] = to_e4m3(weight[at] / scales[i, j])
    return {"weight": items, "weight_scale_inv": scales}


def mxfp4(weight: Tensor) -> tuple[Tensor, Tensor]:
    """[.., N, K] -> bytes [.., N, K / 32, 16] and e8m0 [.., N, K / 32]."""
    groups = weight.view(*weight.shape[:-1], -1, 32)
    largest = groups.abs().amax(-1).clamp(min=2.0**-100)
    exponents = (largest / 6).log2().ceil()
    values = torch.tensor(E2M1)
    sized = (groups.abs() / exponents.exp2().unsqueeze(-1)).unsqueeze(-1)
    codes = (sized - values).abs().argmin(-1) + 8 * (groups < 0)
    low, high = codes[..., 0::2], codes[..., 1::2]
    return (low | high << 4).to(torch.uint8), (exponents + 127).to(torch.uint8)


def mxfp4_packed(weight: Tensor) -> Parts:
    blocks, scales = mxfp4(weight)
    return {"weight_packed": blocks.flatten(-2), "weight_scale": scales}


def to_e4m3(weight: Tensor) -> Tensor:
    return weight.clamp(-E4M3_LIMIT, E4M3_LIMIT).to(torch.float8_e4m3fn)


def compressed(kind: str, **weights: Any) -> dict[str, Any]:
    """The section of config.json that compressed-tensors writes."""
    scheme = {"targets": ["Linear"], "weights": {"symmetric": True, "type": "int", **weights}}
    return {
        "quant_method": "compressed-tensors",
        "format": kind,
        "config_groups": {"group_0": scheme},
        "ignore": ["lm_head"],
    }


@dataclass(frozen=True)
class WrittenLayout:
    encode: Callable[[Tensor], Parts]
    config: Mapping[str, Any]


def _falling(weight: Tensor) -> Tensor:
    """Inputs by falling norm of their weights, in place of the order of `desc_act`, which needs
    calibration data."""
    return weight.square().sum(0).argsort(descending=True)


GPTQ = {"quant_method": "gptq", "bits": 4, "group_size": 128, "desc_act": False, "sym": True}
LAYOUTS: Mapping[str, WrittenLayout] = {
    "gptq 4": WrittenLayout(gptq, GPTQ),
    "gptq 4, zeros": WrittenLayout(lambda w: gptq(w, is_symmetric=False), {**GPTQ, "sym": False}),
    "gptq 4, v2": WrittenLayout(
        lambda w: gptq(w, is_symmetric=False, is_v2=True),
        {**GPTQ, "sym": False, "checkpoint_format": "gptq_v2"},
    ),
    "gptq 4, desc_act": WrittenLayout(
        lambda w: gptq(w, order=_falling(w)), {**GPTQ, "desc_act": True}
    ),
    "gptq 8": WrittenLayout(lambda w: gptq(w, 8), {**GPTQ, "bits": 8}),
    "awq": WrittenLayout(
        awq, {"quant_method": "awq", "bits": 4, "group_size": 128, "version": "gemm"}
    ),
    "fp8 blocks": WrittenLayout(
        fp8_blocks,
        {
            "quant_method": "fp8",
            "fmt": "e4m3",
            "weight_block_size": [128, 128],
            "activation_scheme": "dynamic",
        },
    ),
    "fp8 tensor": WrittenLayout(fp8_tensor, {"quant_method": "fp8", "activation_scheme": "static"}),
    "fp8 channel": WrittenLayout(
        fp8_channels, compressed("float-quantized", num_bits=8, type="float", strategy="channel")
    ),
    "int8 channel": WrittenLayout(
        int8_channels, compressed("int-quantized", num_bits=8, strategy="channel")
    ),
    "packed 4": WrittenLayout(packed, compressed("pack-quantized", num_bits=4, group_size=128)),
    "packed 4, zeros": WrittenLayout(
        lambda w: packed(w, is_symmetric=False),
        compressed("pack-quantized", num_bits=4, group_size=128, symmetric=False),
    ),
    "mxfp4": WrittenLayout(
        mxfp4_packed,
        compressed("mxfp4-pack-quantized", num_bits=4, group_size=32, type="float"),
    ),
}


def write_layout(folder: Path, into: Path, layout: WrittenLayout) -> Path:
    """Copy a checkpoint, with the matrices of its blocks in a format and the rest unchanged."""

    def written(name: str, tensor: Tensor) -> Parts:
        if not is_rounded(name, tensor):
            return {name: tensor}
        module = name.removesuffix(".weight")
        parts = layout.encode(tensor.float())
        return {f"{module}.{end}": part for end, part in parts.items()}

    return _write(folder, into, written, layout.config)


def write_mxfp4_experts(folder: Path, into: Path) -> Path:
    """Copy a GPT-OSS checkpoint with its experts in MXFP4, as its authors publish it."""

    def written(name: str, tensor: Tensor) -> Parts:
        if not name.endswith((".experts.gate_up_proj", ".experts.down_proj")):
            return {name: tensor}
        blocks, scales = mxfp4(tensor.float().transpose(1, 2).contiguous())
        return {f"{name}_blocks": blocks, f"{name}_scales": scales}

    rest = [
        "model.layers.*.self_attn",
        "model.layers.*.mlp.router",
        "model.embed_tokens",
        "lm_head",
    ]
    return _write(folder, into, written, {"quant_method": "mxfp4", "modules_to_not_convert": rest})


def _write(
    folder: Path,
    into: Path,
    written: Callable[[str, Tensor], Parts],
    section: Mapping[str, Any],
) -> Path:
    shutil.copytree(folder, into, ignore=shutil.ignore_patterns("*.safetensors*"))
    tensors: Parts = {}
    for path in sorted(folder.glob("*.safetensors")):
        for name, tensor in load_file(path).items():
            tensors.update(written(name, tensor))
    save_file(tensors, into / "model.safetensors", metadata={"format": "pt"})
    config = json.loads((into / "config.json").read_text())
    config["quantization_config"] = dict(section)
    (into / "config.json").write_text(json.dumps(config))
    return into


def is_rounded(name: str, tensor: Tensor) -> bool:
    """Whether a tensor is quantised: a matrix of a block, but no embedding, output head, router or
    stacked tensor."""
    ends = ("proj.weight", "_with_mqa.weight", ".w1.weight", ".w2.weight", ".w3.weight")
    return name.endswith(ends) and ".layers." in name and tensor.dim() == 2


def main() -> None:
    parser = benchmark_parser(__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("into", type=Path)
    parser.add_argument("layout", choices=LAYOUTS)
    chosen = parser.parse_args()
    write_layout(chosen.folder, chosen.into, LAYOUTS[chosen.layout])


if __name__ == "__main__":
    main()
