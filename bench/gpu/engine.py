"""Whole passes on a GPU: decode steps and prefills of models with random weights, and their limits.

decode   bytes of weights and KV  /  measured copy bandwidth
prefill  FLOPs of products and attention  /  measured rate of products
"""

from __future__ import annotations

import json
import statistics
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from baton.engine.batch.batch import Chunk
from baton.engine.batch.static_batch import PassLimits
from baton.engine.checkpoint.load import LoadedModel, load_model, read_config
from baton.engine.layers.linear import Linear
from baton.engine.memory.kv_cache import KvCache
from baton.engine.models.config.info import ModelInfo
from baton.engine.models.registry import family_of
from baton.engine.passes.runner import ModelRunner
from baton.kernels.products.quantized_weight import FP8, QuantizedWeight
from bench.gpu.clock import Ceilings

BLOCK_SIZE = 16
MAX_MODEL_LEN = 8704
LLAMA_8B: Mapping[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "vocab_size": 128_256,
    "hidden_size": 4096,
    "intermediate_size": 14_336,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "hidden_act": "silu",
    "max_position_embeddings": 16_384,
    "rms_norm_eps": 1e-5,
    "rope_theta": 500_000.0,
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
    "bos_token_id": 128_000,
    "eos_token_id": 128_001,
}
LLAMA_70B = {
    **LLAMA_8B,
    "hidden_size": 8192,
    "intermediate_size": 28_672,
    "num_hidden_layers": 80,
    "num_attention_heads": 64,
}


@dataclass(frozen=True, slots=True)
class Row:
    name: str
    seconds: float
    least_seconds: float

    @property
    def factor(self) -> float:
        """Measured time over the lower bound."""
        return self.seconds / self.least_seconds


def dummy_model(config: Mapping[str, Any], device: str, dtype: str) -> LoadedModel:
    with _folder_of(config) as folder:
        return load_model(Path(folder), dtype=dtype, device=device, load_format="dummy")


def fp8_model(config: Mapping[str, Any], device: str) -> LoadedModel:
    """Random weights in e4m3 with one scale, made on the device, where wider ones would not fit."""
    with _folder_of(config) as folder:
        read = read_config(Path(folder))
    model = family_of(read.architecture).build(read)
    for module in model.modules():
        if isinstance(module, Linear):
            shape = tuple(module.weight.shape)
            del module.weight
            module.weight = _random_fp8(shape, device)
        for name, parameter in list(module.named_parameters(recurse=False)):
            is_norm = parameter.dim() == 1
            made = torch.empty(parameter.shape, dtype=torch.bfloat16, device=device)
            made = made.fill_(1.0) if is_norm else made.normal_(std=0.02)
            setattr(module, name, nn.Parameter(made, requires_grad=False))
    info = ModelInfo(
        architecture=read.architecture,
        vocab_size=read.vocab_size,
        max_model_len=read.max_model_len,
        eos_token_ids=read.eos_token_ids,
        dtype="bfloat16",
        fingerprint=b"made up",
        num_layers=read.num_layers,
        num_kv_heads=read.heads.num_kv_heads,
        head_dim=read.heads.head_dim,
    )
    return LoadedModel(model=model.to(device).eval(), info=info)


def _random_fp8(shape: tuple[int, ...], device: str) -> QuantizedWeight:
    items = torch.empty(shape, dtype=FP8, device=device)
    for start in range(0, shape[0], 4096):
        part = items[start : start + 4096]
        part.copy_(torch.randn(part.shape, device=device).clamp_(-4, 4))
    scale = torch.full((1, 1), 0.02, device=device)
    return QuantizedWeight(items, scale, (shape[0], 0), torch.bfloat16)


def _folder_of(config: Mapping[str, Any]) -> tempfile.TemporaryDirectory[str]:
    folder = tempfile.TemporaryDirectory()
    (Path(folder.name) / "config.json").write_text(json.dumps(config))
    return folder


class EngineBench:
    """The passes of one model."""

    def __init__(self, name: str, loaded: LoadedModel, device: str, *, max_requests: int) -> None:
        self._name, self._loaded = name, loaded
        layout = loaded.info.layout(BLOCK_SIZE)
        max_blocks = layout.num_blocks_for(MAX_MODEL_LEN)
        num_blocks = max(max_requests * layout.num_blocks_for(2304), max_blocks)
        limits = PassLimits(max_requests=max_requests, max_blocks=max_blocks)
        cache = KvCache(layout, num_blocks, device, limits=limits)
        self._layout, self._num_blocks = layout, num_blocks
        self.runner = ModelRunner(loaded, cache)

    @property
    def weight_bytes(self) -> float:
        """Bytes of weights that every step reads: all but an embedding table of its own."""
        model = self._loaded.model
        kept = sum(
            float(module.weight.nbytes)
            for module in model.modules()
            if isinstance(module, Linear) and not isinstance(module.weight, Tensor)
        )
        total = kept + sum(parameter.nbytes for parameter in model.parameters())
        table = model.embed.weight
        return total if model.head is None else total - table.nbytes

    @property
    def num_weights(self) -> float:
        """Weights that every token is multiplied by."""
        linears = [m for m in self._loaded.model.modules() if isinstance(m, Linear)]
        head = self._loaded.model.head
        return float(sum(m.weight.shape[0] * m.weight.shape[1] for m in linears if m is not head))

    def decode(self, num_requests: int, context: int, ceilings: Ceilings) -> Row:
        needed = self._layout.num_blocks_for(context)
        stride = self._num_blocks // num_requests
        chunks = [
            Chunk((7,), context - 1, range(row * stride, row * stride + needed), 1)
            for row in range(num_requests)
        ]
        kv_bytes = float(num_requests * needed * self._layout.block_bytes)
        return Row(
            f"{self._name}, decode, {num_requests} x {context}",
            self._seconds(lambda: self._step(chunks)),
            (self.weight_bytes + kv_bytes) / ceilings.bytes,
        )

    def mixed(
        self, num_decoding: int, context: int, num_tokens: int, ceilings: Ceilings
    ) -> list[Row]:
        """A prefill chunk in the batch of decoding requests, with and without a CUDA graph."""
        needed = self._layout.num_blocks_for(context)
        own = range(self._layout.num_blocks_for(num_tokens))
        stride = (self._num_blocks - len(own)) // num_decoding
        firsts = [len(own) + row * stride for row in range(num_decoding)]
        chunks = [Chunk([token % 1000 for token in range(num_tokens)], 0, own, 1)]
        chunks += [Chunk((7,), context - 1, range(at, at + needed), 1) for at in firsts]
        kv_bytes = float(num_decoding * needed * self._layout.block_bytes)
        by_memory = (self.weight_bytes + kv_bytes) / ceilings.bytes
        num_flops = 2.0 * self.num_weights * (num_tokens + num_decoding)
        least = max(by_memory, num_flops / ceilings.bf16)
        name = f"{self._name}, prompt of {num_tokens} beside {num_decoding} x {context}"
        rows = [Row(name, self._seconds(lambda: self._step(chunks)), least)]
        graphs, self.runner.mixed = self.runner.mixed, None
        rows.append(
            Row(f"{name}, without graphs", self._seconds(lambda: self._step(chunks)), least)
        )
        self.runner.mixed = graphs
        return rows

    def prefill(self, num_tokens: int, ceilings: Ceilings) -> Row:
        blocks = range(self._layout.num_blocks_for(num_tokens))
        chunks = [Chunk([token % 1000 for token in range(num_tokens)], 0, blocks, 1)]
        info = self._loaded.info
        width = self._loaded.model.embed.weight.shape[1]
        attention = 2.0 * info.num_layers * width * num_tokens**2
        num_flops = 2.0 * self.num_weights * num_tokens + attention
        return Row(
            f"{self._name}, prefill {num_tokens}",
            self._seconds(lambda: self._step(chunks)),
            num_flops / ceilings.bf16,
        )

    def _step(self, chunks: list[Chunk]) -> Tensor:
        return self.runner.logits(self.runner.forward(chunks))

    def _seconds(self, run: Callable[[], Tensor]) -> float:
        """Seconds by the host's clock, which include Python and kernel launches."""
        return median_seconds(lambda: float(run()[0, 0]))


def median_seconds(run: Callable[[], object], num_runs: int = 20, warm_up: int = 3) -> float:
    for _ in range(warm_up):
        run()
    taken = []
    for _ in range(num_runs):
        started = time.perf_counter()
        run()
        taken.append(time.perf_counter() - started)
    return statistics.median(taken)
