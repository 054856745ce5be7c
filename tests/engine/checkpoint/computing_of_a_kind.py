"""What this process, of the kind of CPU that BATON_CPU_KERNELS names, makes of some models.

python -m tests.engine.checkpoint.computing_of_a_kind FOLDER ...    a line of JSON: by case, the
fingerprint, the kind of numbers, and a digest of logits and KV.
"""

from __future__ import annotations

import hashlib
import json
import sys
from pathlib import Path

import torch
from tests.engine.model_runs import BLOCK_SIZE, NUM_BLOCKS, answer, make_prompt, scrambled_tables

from baton.engine.batch.batch import Chunk
from baton.engine.checkpoint.install import order_of_sums
from baton.engine.checkpoint.load import load_model
from baton.engine.memory.kv_cache import KvCache
from baton.engine.passes.runner import ModelRunner
from baton.kernels.products.linear import logits
from baton.kernels.products.packed_weight import pack

PROMPT_LENS = (70, 9, 1)


def of_model(
    folder: Path, dtype: str, quantize: str, kv_dtype: str = "auto"
) -> tuple[str, str] | None:
    """None for KV that such a model does not keep so."""
    loaded = load_model(folder, dtype=dtype, quantize=quantize)
    if kv_dtype != "auto" and loaded.info.num_vectors == 1:
        return None
    cache = KvCache(loaded.info.layout(BLOCK_SIZE, kv_dtype), NUM_BLOCKS, dtype=dtype)
    runner, digest = ModelRunner(loaded, cache), hashlib.sha256()
    tables = scrambled_tables([length + 4 for length in PROMPT_LENS])
    prompts = [make_prompt(length, seed) for seed, length in enumerate(PROMPT_LENS)]
    chunks = [Chunk(p, 0, table, 1) for p, table in zip(prompts, tables, strict=True)]
    for step in range(4):
        found = answer(runner, chunks)
        digest.update(found.numpy().tobytes())
        chunks = [
            Chunk([7 + step], len(p) + step, table, 1)
            for p, table in zip(prompts, tables, strict=True)
        ]
    for plane in cache.planes:
        digest.update(plane.view(torch.uint8).numpy().tobytes())
    return loaded.info.fingerprint.hex(), digest.hexdigest()


def of_small_products(dtype: torch.dtype) -> tuple[str, str]:
    """Items so small that it matters whether a product is rounded before it is added."""
    x = torch.tensor([[2.0**-75, 2.0**-75]], dtype=dtype)
    weight = torch.tensor([[2.0**-74, 2.0**-75], [2.0**-50, 2.0**-76]], dtype=dtype)
    return order_of_sums("cpu", dtype), logits(x, pack(weight)).numpy().tobytes().hex()


def main() -> None:
    found: dict[str, tuple[str, str] | None] = {
        str(d): of_small_products(d) for d in (torch.float32, torch.bfloat16)
    }
    for name in sys.argv[1:]:
        for dtype in ("float32", "bfloat16"):
            for quantize in ("none", "int8", "int4"):
                case = f"{Path(name).name} {dtype} {quantize}"
                found[case] = of_model(Path(name), dtype, quantize)
            for kv_dtype in ("int8", "fp8"):
                case = f"{Path(name).name} {dtype} KV in {kv_dtype}"
                found[case] = of_model(Path(name), dtype, "none", kv_dtype)
    print(json.dumps({case: of for case, of in found.items() if of is not None}))


if __name__ == "__main__":
    main()
