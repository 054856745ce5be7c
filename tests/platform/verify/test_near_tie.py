"""The bound on the top-2 gap: sums in another order stay within it."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from tests.tiny_checkpoints import make_llama
from torch import Tensor

from baton.engine.batch.batch import Chunk, ignore_layer, make_batch
from baton.engine.checkpoint import install
from baton.engine.checkpoint.load import LoadedModel, load_model
from baton.engine.memory.kv_cache import KvCache
from baton.kernels.cpu import operators
from baton.kernels.products import linear
from baton.platform.verify.near_tie import gap_bound, gap_bound_of, longest_sum, spread_of

NUM_TOKENS = 96
DTYPES = ("float32", "bfloat16", "float16")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_llama(
        tmp_path_factory.mktemp("model"), num_hidden_layers=6, max_position_embeddings=128
    )


def load_for_torch(folder: Path, dtype: str, monkeypatch: pytest.MonkeyPatch) -> LoadedModel:
    """As on a device whose products are a library's."""
    monkeypatch.setattr(operators, "runs", lambda *tensors: False)
    monkeypatch.setattr(install, "can_pack", lambda tensor: False)
    return load_model(folder, dtype=dtype)


@torch.inference_mode()
def logits_of(loaded: LoadedModel) -> Tensor:
    cache = KvCache(loaded.info.layout(NUM_TOKENS), 1)
    tokens = [(31 * place + 7) % loaded.info.vocab_size for place in range(NUM_TOKENS)]
    batch = make_batch([Chunk(tokens, 0, (0,), NUM_TOKENS)], NUM_TOKENS, "cpu")
    return loaded.model.logits(loaded.model(batch, cache.layers, ignore_layer)).clone()


def split_backwards(num_parts: int) -> Callable[..., Tensor]:
    """A product whose sums are split and added from the end, as a library might."""

    def product(x: Tensor, weight: Tensor, bias: Tensor | None, dtype: torch.dtype) -> Tensor:
        parts = zip(x.tensor_split(num_parts, -1), weight.tensor_split(num_parts, -1), strict=True)
        *others, total = [a.float() @ b.float().T for a, b in parts]
        for other in reversed(others):
            total = total + other
        return (total if bias is None else total + bias.float()).to(x.dtype).to(dtype)

    return product


@pytest.mark.parametrize("num_parts", [2, 7])
@pytest.mark.parametrize("dtype", DTYPES)
def test_gaps_move_by_less_than_the_bound_when_sums_are_split(
    folder: Path, dtype: str, num_parts: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    loaded = load_for_torch(folder, dtype, monkeypatch)
    whole = logits_of(loaded)
    monkeypatch.setattr(linear, "_wide", split_backwards(num_parts))
    split = logits_of(loaded)

    best = whole.topk(2, dim=-1).indices
    moved = (whole.gather(-1, best).diff(dim=-1) - split.gather(-1, best).diff(dim=-1)).abs()

    bound = gap_bound_of(loaded, "cpu")
    assert float(moved.max()) < bound
    assert moved.any() or dtype != "float32", "sums were not added in another order"
    changed = whole.argmax(-1) != split.argmax(-1)
    gaps = whole.topk(2, dim=-1).values.diff(dim=-1).abs().squeeze(-1)
    assert (gaps[changed] < bound).all()


@pytest.mark.parametrize("dtype", DTYPES)
def test_the_bound_is_far_below_what_tells_tokens_apart(
    folder: Path, dtype: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A bound as large as the logits themselves would excuse anything."""
    loaded = load_for_torch(folder, dtype, monkeypatch)

    assert gap_bound_of(loaded, "cpu") < spread_of(loaded, "cpu")


def test_where_operators_of_ours_compute_there_is_nothing_to_excuse(folder: Path) -> None:
    if not operators.runs(torch.empty(0, dtype=torch.bfloat16)):
        pytest.skip("no compiled operators here")

    assert gap_bound_of(load_model(folder, dtype="bfloat16"), "cpu") == 0


def test_it_grows_with_roundings_depth_and_spread(folder: Path) -> None:
    bound = gap_bound("bfloat16", 28, 3072, 2.0)

    assert bound == pytest.approx(2 * gap_bound("bfloat16", 28, 3072, 1.0))
    assert bound > gap_bound("bfloat16", 7, 3072, 2.0)
    assert bound > gap_bound("float16", 28, 3072, 2.0) > gap_bound("float32", 28, 3072, 2.0)
    config = json.loads((folder / "config.json").read_text())
    wide = max(config["hidden_size"], config["intermediate_size"])
    assert longest_sum(load_model(folder)) == wide < config["vocab_size"]
