"""LoRA adapters with random weights for any model folder: as costly as trained ones."""

from __future__ import annotations

import json
from pathlib import Path

import torch
from safetensors.torch import save_file

from baton.engine.checkpoint.adapters.peft_folder import CONFIG, DOWN, PREFIX, SAFETENSORS, UP
from baton.engine.checkpoint.load import plan_weights
from baton.engine.layers.linear import Linear


def random_adapter(model: Path, folder: Path, *, rank: int = 16, seed: int = 0) -> Path:
    """An adapter of all linear layers of attention and feed-forward, in `folder`."""
    _, built, _, placements = plan_weights(model, "auto")
    generator = torch.Generator().manual_seed(seed)
    tensors = {}
    for placement in placements:
        layer, _, name = placement.target.rpartition(".")
        module = built.get_submodule(layer)
        if name != "weight" or not layer.startswith("blocks.") or not isinstance(module, Linear):
            continue
        num_rows = placement.rows.stop - placement.rows.start
        width = module.weight.shape[1]
        source = PREFIX + placement.source.removesuffix(".weight")
        down = torch.randn(rank, width, generator=generator) / width
        tensors[source + DOWN] = down.bfloat16()
        tensors[source + UP] = torch.randn(num_rows, rank, generator=generator).bfloat16()
    folder.mkdir(parents=True, exist_ok=True)
    save_file(tensors, folder / SAFETENSORS)
    (folder / CONFIG).write_text(json.dumps({"peft_type": "LORA", "r": rank, "lora_alpha": rank}))
    return folder
