"""A model on a GPU whose sums have one order: kernels interpreted, all parts of a pass together."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from tests.engine.model_runs import BLOCK_SIZE, NUM_BLOCKS
from tests.kernels.gpu.pretended_gpu import tensors_on_a_gpu
from tests.tiny_checkpoints import FAMILIES

from baton.core.errors import InvalidConfig
from baton.engine.batch.batch import Chunk, ignore_layer, make_batch
from baton.engine.checkpoint.deterministic import check_deterministic, fix_order
from baton.engine.checkpoint.load import check_model, load_model, plan_weights
from baton.engine.layers.embedding import Embedding
from baton.engine.layers.linear import Linear
from baton.engine.layers.mla import LatentHeads
from baton.engine.layers.moe import Experts
from baton.engine.memory.kv_cache import KvCache
from baton.engine.mesh.mesh import Mesh
from baton.engine.models.skeleton.decoder import Decoder
from baton.kernels.latent_attention import (
    batch_invariant_mla_attention_gpu,
    latent_attention,
    mla_attention_gpu,
)
from baton.kernels.latent_attention.latent_heads import LatentWeights
from baton.kernels.products.batch_invariant_weight import BatchInvariantWeight
from baton.kernels.products.head_linear import BatchInvariantHeads

PROMPT = [5, 9, 2, 11, 7, 3, 8, 4, 6, 10, 12, 13, 14, 2, 3, 4, 5, 6]


def multiplied(model: Decoder) -> list[Linear | Embedding]:
    return [
        part
        for part in model.modules()
        if isinstance(part, Linear) or (isinstance(part, Embedding) and part.is_tied)
    ]


class Deterministic:
    """A model and its cache on a pretended GPU."""

    def __init__(self, folder: Path) -> None:
        loaded = load_model(folder, dtype="float16")  # whose weights are plain tensors everywhere
        self.model = loaded.model
        for part in multiplied(self.model):
            whole = part.weight
            assert isinstance(whole, torch.Tensor)
            del part.weight
            part.weight = BatchInvariantWeight(whole)
        for heads in (part for part in self.model.modules() if isinstance(part, LatentHeads)):
            kept = heads.weight
            assert isinstance(kept, LatentWeights)
            absorb, values = (BatchInvariantHeads(each) for each in (kept.absorb, kept.values))  # type: ignore[arg-type]
            heads.weight = replace(kept, absorb=absorb, values=values, is_batch_invariant=True)
        fix_order(self.model)
        layout = loaded.info.layout(BLOCK_SIZE)
        self.cache = KvCache(layout, NUM_BLOCKS, dtype="float16", is_deterministic=True)

    @torch.inference_mode()
    def logits(self, *chunks: Chunk) -> torch.Tensor:
        batch = make_batch(chunks, BLOCK_SIZE, "cpu")
        with tensors_on_a_gpu():
            hidden = self.model(batch, self.cache.layers, ignore_layer)
            found: torch.Tensor = self.model.logits(hidden)
        return found


@pytest.mark.parametrize(
    ("family", "sizes"),
    [
        ("qwen3 moe", {"num_attention_heads": 2, "num_key_value_heads": 1}),  # norms of heads
        ("deepseek v3", {"first_k_dense_replace": 0}),  # latents, and experts
        ("deepseek v3.2", {"first_k_dense_replace": 1}),  # of which an index chooses
    ],
)
def test_a_request_has_the_same_logits_whatever_is_beside_it(
    family: str, sizes: dict[str, int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("baton.kernels.experts.grouped_linear_gpu.FEW_ROWS", 4)  # as of long ones
    monkeypatch.setattr(batch_invariant_mla_attention_gpu, "SPLIT_KEYS", 16)
    monkeypatch.setattr(mla_attention_gpu, "mla_attention", None)  # the other is called
    monkeypatch.setattr(latent_attention, "MIN_EXPANDED", 2)
    monkeypatch.setattr(latent_attention, "is_expanded_cheaper", lambda *_: True)
    folder = FAMILIES[family](tmp_path, num_hidden_layers=1, **sizes)
    size, table = len(PROMPT), list(range(8))
    at_once = Deterministic(folder)
    prompt = at_once.logits(Chunk(PROMPT, 0, table, 2))

    in_pieces = Deterministic(folder)
    other = Chunk([3, 1, 4, 1, 5], 0, [40, 41], 1)
    in_pieces.logits(Chunk(PROMPT[:1], 0, table, 0), other)
    last = in_pieces.logits(Chunk(PROMPT[1:], 1, table, 2))
    assert torch.equal(last, prompt)
    drafted = at_once.logits(Chunk([20, 21, 22], size, table, 3))
    for place, token in enumerate((20, 21, 22)):
        decode = Chunk([token], size + place, table, 1)
        alone = in_pieces.logits(decode, Chunk([7], 5 + place, [40, 41], 1))[0]
        assert torch.equal(alone, drafted[place])
    assert at_once.cache.planes[0][:5].equal(in_pieces.cache.planes[0][:5])


def test_a_model_that_is_loaded_so_multiplies_so_and_has_a_name_of_its_own(tmp_path: Path) -> None:
    folder = FAMILIES["qwen3"](tmp_path)

    fixed, plain = (
        load_model(folder, device="meta", deterministic=each)  # anywhere but on a CPU
        for each in (True, False)
    )
    of_experts = load_model(
        FAMILIES["mixtral"](tmp_path / "moe"), device="meta", deterministic=True
    )

    assert fixed.is_deterministic and not plain.is_deterministic
    assert all(isinstance(part.weight, BatchInvariantWeight) for part in multiplied(fixed.model))
    assert not any(
        isinstance(part.weight, BatchInvariantWeight) for part in multiplied(plain.model)
    )
    of_latents = load_model(
        FAMILIES["deepseek v3"](tmp_path / "mla"), device="meta", deterministic=True
    )
    (attention, *_) = [part for part in of_latents.model.modules() if isinstance(part, LatentHeads)]
    assert isinstance(attention.weight, LatentWeights) and attention.weight.is_batch_invariant
    assert isinstance(attention.weight.absorb, BatchInvariantHeads)
    assert isinstance(attention.weight.values, BatchInvariantHeads)
    mixtures = [part for part in of_experts.model.modules() if isinstance(part, Experts)]
    assert mixtures and all(part.weights.is_batch_invariant for part in mixtures)
    assert fixed.info.fingerprint != plain.info.fingerprint
    on_cpu = [load_model(folder, deterministic=each) for each in (True, False)]
    assert on_cpu[0].info == on_cpu[1].info and not on_cpu[0].is_deterministic


@pytest.mark.parametrize(
    ("family", "device", "dtype", "why"),
    [
        ("deepseek v4", "cuda", "bfloat16", "compressed attention"),
        ("llama", "cpu", "float16", "bfloat16 or float32"),
    ],
)
def test_what_it_is_not_there_for_is_refused(
    family: str, device: str, dtype: str, why: str, tmp_path: Path
) -> None:
    folder = FAMILIES[family](tmp_path)
    with pytest.raises(InvalidConfig, match=why):
        check_model(folder, device=device, dtype=dtype, deterministic=True)
    check_model(folder, device=device, dtype=dtype)
    check_model(FAMILIES["llama"](tmp_path / "llama"), device=device, deterministic=True)


@pytest.mark.parametrize(
    ("mesh", "why"),
    [
        (Mesh(tensor=2), None),
        (Mesh(tensor=2, data=2, expert=4), None),
        (Mesh(tensor=3), "three ranks or more"),
        (Mesh(tensor=2, expert=2), "which rank has which"),
    ],
)
def test_ranks_on_cpus_whose_sums_have_no_one_order_are_refused(
    mesh: Mesh, why: str | None, tmp_path: Path
) -> None:
    config, _, _, _ = plan_weights(FAMILIES["mixtral"](tmp_path), "auto")
    refused = nullcontext() if why is None else pytest.raises(InvalidConfig, match=why)
    with refused:
        check_deterministic(config, "cpu", "float32", mesh)
