"""What ranks are planned to send each other is what they send, call by call and byte by byte."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from tests.platform.layout_plan.rank_threads import Calls, Messages, on_threads
from tests.tiny_checkpoints import FAMILIES, VOCAB_SIZE

from baton.engine.batch.batch import Chunk
from baton.engine.checkpoint.load import read_config
from baton.engine.config import CacheConfig, EngineConfig, SchedulerConfig
from baton.engine.engine import Engine
from baton.engine.mesh.mesh import Mesh
from baton.platform.doctor.demand import kv_layout
from baton.platform.layout_plan.pass_transfers import WORD_BYTES, RankModel, transfers
from baton.platform.layout_plan.rank_models import rank_models
from baton.platform.layout_plan.transfers import Kind, Transfer, merged, sent_bytes

BLOCK_SIZE = 4
CONFIG = EngineConfig(
    cache=CacheConfig(block_size=BLOCK_SIZE, num_blocks=64),
    scheduler=SchedulerConfig(prefill_chunk=64, max_batch_tokens=128, micro_batch_tokens=8),
)


def prompts(*lengths: int) -> list[Chunk]:
    chunks, block = [], 0
    for length in lengths:
        num_blocks = -(-(length + 1) // BLOCK_SIZE)
        chunks.append(Chunk(range(2, 2 + length), 0, range(block, block + num_blocks), 1))
        block += num_blocks
    return chunks


def following(chunks: Sequence[Chunk]) -> list[Chunk]:
    """A token more of each."""
    return [Chunk([5], len(chunk.tokens), chunk.blocks, 1) for chunk in chunks]


PREFILL = prompts(50, 21)
PASSES = [PREFILL, following(PREFILL)]


def compute(engine: Engine) -> None:
    for chunks in PASSES:
        engine.runner.logits(engine.runner.forward(chunks))


def models_of(folder: Path, mesh: Mesh) -> Sequence[RankModel]:
    whole = read_config(folder)
    layout = kv_layout(CONFIG.cache, whole, "float32")
    return rank_models(whole, layout, mesh, "float32", micro_batch_tokens=8)


def planned(folder: Path, mesh: Mesh, rank: int) -> Calls:
    """Of all passes, and of the end."""
    models = models_of(folder, mesh)
    found: Calls = Counter()
    for chunks in PASSES:
        for each in transfers(models[mesh.place(rank).stage], rank, chunks):
            found[each.kind, each.num_ranks, each.num_bytes] += each.count
    if mesh.engine.size > 1:
        found[Kind.BROADCAST, mesh.engine.size, WORD_BYTES] += 2  # the lead's last word
    return found


CASES: dict[str, tuple[str, Mesh, dict[str, Any]]] = {
    "llama on two": ("llama", Mesh(tensor=2), {}),
    "an odd vocabulary on each": ("gpt2", Mesh(tensor=2), {"vocab_size": VOCAB_SIZE + 1}),
    "attention beside the feed-forward": ("falcon", Mesh(tensor=2), {}),
    "experts beside one that all share": ("qwen2 moe", Mesh(tensor=2), {}),
    "latents, on four": ("deepseek v3", Mesh(tensor=4), {}),
    "whole experts on each": ("mixtral", Mesh(tensor=2, expert=2), {}),
    "two stages": ("llama", Mesh(pipeline=2), {}),
    "two stages of two, of experts": ("mixtral", Mesh(tensor=2, pipeline=2), {}),
    "tokens on two": ("deepseek v3", Mesh(context=2), {}),
    "tokens on two, which index them": ("deepseek v3.2", Mesh(context=2), {}),
    "indices beside experts, on two": ("deepseek v3.2", Mesh(tensor=2), {}),
    "compressed, with several streams, on two": ("deepseek v4", Mesh(tensor=2), {}),
    "tokens on two of two": ("llama", Mesh(tensor=2, context=2), {}),
}


@pytest.mark.parametrize("case", CASES)
def test_every_rank_sends_what_is_planned(
    case: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    family, mesh, overrides = CASES[case]
    folder = FAMILIES[family](tmp_path, **overrides)
    messages = Messages()
    messages.count(monkeypatch)

    on_threads(folder, CONFIG, mesh, compute)

    for rank in range(mesh.size):
        found = messages.by_rank[rank]
        assert without_setup(found) == without_setup(planned(folder, mesh, rank)), rank


def without_setup(calls: Calls) -> Calls:
    """What ranks settle on before they serve is gathered in words: that is not looked at. Nor are
    sums of no rows, of which nothing is sent."""
    gathered = {WORD_BYTES, 2 * WORD_BYTES}
    return Counter(
        {
            (kind, num_ranks, num_bytes): count
            for (kind, num_ranks, num_bytes), count in calls.items()
            if not (kind is Kind.ALL_GATHER and num_bytes in gathered)
            and (num_bytes or kind is not Kind.ALL_REDUCE)
        }
    )


@pytest.mark.parametrize("tensor", [1, 2])
def test_data_places_send_what_is_planned(
    tensor: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Which expert gets how much is another matter: what comes back is right in all."""
    mesh = Mesh(tensor=tensor, data=2, expert=2 * tensor)
    folder = FAMILIES["qwen3 moe"](tmp_path)
    messages = Messages()
    messages.count(monkeypatch)

    on_threads(folder, CONFIG, mesh, compute)

    exchanged: Counter[str] = Counter()
    for rank in range(mesh.size):
        found, wanted = without_setup(messages.by_rank[rank]), planned(folder, mesh, rank)
        wanted = without_setup(wanted)
        for kind, calls, sign in ((Kind.ALL_TO_ALL, found, 1), (Kind.ALL_TO_ALL, wanted, -1)):
            for key in [key for key in calls if key[0] is kind]:
                exchanged["bytes"] += sign * key[2] * calls[key]
                exchanged["calls"] += sign * calls.pop(key)
        assert found == wanted, rank
    assert exchanged == {"bytes": 0, "calls": 0}


def test_one_rank_sends_nothing(tmp_path: Path) -> None:
    [model] = models_of(FAMILIES["llama"](tmp_path), Mesh())

    assert transfers(model, 0, PREFILL) == []


def test_a_layer_adds_up_twice_whatever_its_experts_share(tmp_path: Path) -> None:
    """Behind attention, and behind the feed-forward."""
    folder = FAMILIES["qwen2 moe"](tmp_path)
    [model] = models_of(folder, Mesh(tensor=2))

    assert len(model.sums) == 2 * read_config(folder).num_layers


def transfer(kind: Kind, *, count: int = 1, num_bytes: int = 1000) -> Transfer:
    return Transfer(what="x", kind=kind, num_ranks=4, count=count, num_bytes=num_bytes)


def test_in_a_ring_a_sum_goes_round_twice_and_a_copy_once() -> None:
    sent = {kind: transfer(kind, count=3).sent_bytes for kind in Kind}

    assert sent == {
        Kind.ALL_REDUCE: 3 * 1500,
        Kind.ALL_GATHER: 3 * 3000,
        Kind.ALL_TO_ALL: 3 * 750,
        Kind.BROADCAST: 3 * 1000,
        Kind.SEND: 3 * 1000,
        Kind.RECEIVE: 0,
    }


def test_what_differs_in_its_count_alone_is_one_transfer() -> None:
    small, large = transfer(Kind.SEND, num_bytes=1), transfer(Kind.SEND, num_bytes=2)

    found = merged([small, large, transfer(Kind.SEND, count=2, num_bytes=1)])

    assert found == [transfer(Kind.SEND, count=3, num_bytes=1), large]
    assert sent_bytes(found) == 5
