"""Tokens and KV do not depend on how many ranks share the tokens of a prompt."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from tests.engine.rank_processes import RankProcesses, engine_on_ranks
from tests.far_apart import with_wide
from tests.in_process_fleet import running_fleet
from tests.tiny_checkpoints import FAMILIES, VOCAB_SIZE, transformers_greedy

from baton.core.errors import InvalidConfig
from baton.core.messages import Pooling
from baton.core.replicas import Role
from baton.core.sampling import SamplingParams
from baton.engine.assemble import assemble_engine
from baton.engine.cache_plan import plan_cache
from baton.engine.checkpoint.load import load_model, read_config
from baton.engine.config import CacheConfig, EngineConfig, SchedulerConfig
from baton.engine.engine import Engine
from baton.engine.mesh.mesh import Mesh
from baton.engine.mesh.ranks import ONE_RANK
from baton.engine.ranks.sharded_cache import ShardedCache
from baton.engine.request.request import Request
from baton.engine.sharding.cutting import share_of
from baton.platform.replica.engine_facts import engine_facts

MAX_TOKENS = 6
CONFIG = EngineConfig(
    cache=CacheConfig(block_size=4, num_blocks=256),
    scheduler=SchedulerConfig(prefill_chunk=64, max_batch_tokens=160),
)
SEVENS = replace(CONFIG, scheduler=SchedulerConfig(prefill_chunk=7, max_batch_tokens=96))
NARROW_KV = replace(CONFIG, cache=replace(CONFIG.cache, kv_dtype="int8"))
RNG = random.Random(7)
PROMPTS = [
    [RNG.randrange(2, VOCAB_SIZE) for _ in range(length)]
    for length in (1, 9, 61, 150, 37, 42, 35, 50, 20, 28, 33, 45, 31)
]
PROMPTS.append([*PROMPTS[3][:70], 5, *PROMPTS[2]])  # a prefix hit, once the others are done
GREEDY = SamplingParams(temperature=0.0, max_tokens=MAX_TOKENS, ignore_eos=True)


def answers(engine: Engine, sampling: SamplingParams = GREEDY) -> list[list[int]]:
    """Three prompts first, the others while they decode, the last when all are done."""
    requests = [Request(str(n), prompt, sampling=sampling) for n, prompt in enumerate(PROMPTS)]
    for group in (requests[:3], requests[3:-1], requests[-1:]):
        for request in group:
            engine.add(request)
        for _ in range(3 if group is not requests[-1:] else 0):
            engine.step()
        if group[0] is not requests[0]:
            while engine.has_work:
                assert not engine.step().is_stalled
    return [request.output for request in requests]


CASES: dict[str, tuple[str, Mesh, EngineConfig]] = {
    "llama on two": ("llama", Mesh(context=2), CONFIG),
    "llama on three": ("llama", Mesh(context=3), CONFIG),
    "llama in chunks of seven": ("llama", Mesh(context=2), SEVENS),
    "llama on two by two": ("llama", Mesh(context=2, tensor=2), CONFIG),
    "gemma2 on two": ("gemma2", Mesh(context=2), CONFIG),
    "mixtral on two": ("mixtral", Mesh(context=2), CONFIG),
    "mixtral on two by two, with experts that move": (
        "mixtral",
        Mesh(context=2, tensor=2, expert=2, redundant_experts=1),
        replace(CONFIG, rebalance_passes=3),
    ),
    "gpt-oss on three": ("gpt-oss", Mesh(context=3), CONFIG),
    "deepseek v3 on two": ("deepseek v3", Mesh(context=2), CONFIG),
    "deepseek v3.2 on two": ("deepseek v3.2", Mesh(context=2), CONFIG),
    "glm moe dsa on three": ("glm moe dsa", Mesh(context=3), CONFIG),
    "deepseek v4 on two": ("deepseek v4", Mesh(context=2), CONFIG),
    "deepseek v4 on three": ("deepseek v4", Mesh(context=3), CONFIG),
    "deepseek v3 on two by two": ("deepseek v3", Mesh(context=2, tensor=2), CONFIG),
    "glm moe dsa on two": ("glm moe dsa", Mesh(context=2), CONFIG),
}

FAR_APART = {
    "llama in chunks of seven",
    "mixtral on two by two, with experts that move",
    "glm moe dsa on three",
    "deepseek v4 on two",
}


@pytest.mark.parametrize("case", with_wide(CASES, FAR_APART))
def test_ranks_that_share_prompts_give_what_transformers_gives(
    case: str, ranks: RankProcesses, tmp_path: Path
) -> None:
    family, mesh, config = CASES[case]
    folder = FAMILIES[family](tmp_path)
    expected = transformers_greedy(folder, PROMPTS, MAX_TOKENS)

    with engine_on_ranks(ranks, folder, config, mesh, dtype="float32") as (engine, followers):
        found = answers(engine, replace(GREEDY, ignore_eos=False))
        assert engine.pool.num_in_use == 0

    assert found == expected
    assert [follower.outcome() for follower in followers] == [""] * (mesh.size - 1)


@pytest.mark.parametrize("family", ["llama", "gemma2", "mixtral"])
@pytest.mark.parametrize("config", [CONFIG, NARROW_KV], ids=["wide KV", "int8 KV"])
def test_the_kv_of_every_rank_has_the_bits_of_one_rank_alone(
    family: str, config: EngineConfig, ranks: RankProcesses, tmp_path: Path
) -> None:
    folder = FAMILIES[family](tmp_path)
    alone = assemble_engine(folder, config, dtype="float32", device="cpu")
    expected = answers(alone)

    with engine_on_ranks(ranks, folder, config, Mesh(context=2), dtype="float32") as (engine, _):
        assert answers(engine) == expected
        cache = engine.runner.cache
        assert isinstance(cache, ShardedCache)
        for shares, plane in zip(cache._shares, alone.runner.cache.arena.planes, strict=True):
            whole = plane.view(torch.uint8).flatten(1)
            assert [torch.equal(share.blocks, whole) for share in shares] == [True, True]


def test_clients_are_told_the_same_of_prompts_that_are_shared(
    ranks: RankProcesses, tmp_path: Path
) -> None:
    folder = FAMILIES["llama"](tmp_path)
    expected = told(assemble_engine(folder, CONFIG, dtype="float32", device="cpu"))

    with engine_on_ranks(ranks, folder, CONFIG, Mesh(context=2), dtype="float32") as (engine, _):
        assert told(engine) == expected


def told(engine: Engine) -> dict[str, list[float]]:
    """The logprobs of a prompt, and the embedding of another, to the bit."""
    sampling = SamplingParams(temperature=0.0, max_tokens=4, num_logprobs=1, num_prompt_logprobs=1)
    engine.add(Request("logprobs", PROMPTS[3], sampling=sampling))
    engine.add(Request("last", PROMPTS[2], sampling=sampling, pooling=Pooling.LAST))
    engine.add(Request("mean", PROMPTS[7], sampling=sampling, pooling=Pooling.MEAN))
    found: dict[str, list[float]] = {"logprobs": [], "last": [], "mean": []}
    while engine.has_work:
        for output in engine.step().outputs:
            numbers = found[output.request.request_id]
            numbers += [each.logprob for each in (*output.prompt_logprobs, *output.logprobs)]
            numbers += output.embedding
    assert all(found.values())
    return found


def test_tokens_that_all_compute_alike_are_computed_as_on_one_rank(
    ranks: RankProcesses, tmp_path: Path
) -> None:
    folder = FAMILIES["llama"](tmp_path)
    alone = engine_facts("tiny", assemble_engine(folder, CONFIG, dtype="float32", device="cpu"))

    with engine_on_ranks(ranks, folder, CONFIG, Mesh(context=2), dtype="float32") as (engine, _):
        facts = engine_facts("tiny", engine)

    assert (facts.num_ranks, facts.passes) == (2, alone.passes)


def test_a_rank_that_dies_fails_the_pass_that_it_had_a_share_of(
    ranks: RankProcesses, tmp_path: Path
) -> None:
    folder = FAMILIES["llama"](tmp_path)
    with engine_on_ranks(ranks, folder, CONFIG, Mesh(context=2)) as (engine, [follower]):
        engine.add(Request("one", PROMPTS[3], sampling=GREEDY))
        engine.step()

        follower.process.kill()
        follower.process.join()

        with pytest.raises(RuntimeError):
            for _ in range(5):
                engine.step()


def test_blocks_that_are_open_are_not_shared(tmp_path: Path) -> None:
    alone = load_model(FAMILIES["llama"](tmp_path))
    one_of_two = replace(alone, groups=replace(ONE_RANK, mesh=Mesh(context=2)))
    int4 = replace(CONFIG, cache=replace(CONFIG.cache, kv_dtype="int4"))

    with pytest.raises(InvalidConfig, match="blocks that are partly filled; set int8"):
        plan_cache(one_of_two, int4, "cpu")


@pytest.mark.parametrize(
    ("mesh", "reason"),
    [
        (Mesh(context=2, pipeline=2), "split a prompt into micro-batches already"),
        (Mesh(context=2, expert=2), "do not share experts; set parallel.expert to 1$"),
    ],
)
def test_what_does_not_go_with_shared_prompts_is_refused_with_the_reason(
    mesh: Mesh, reason: str, tmp_path: Path
) -> None:
    config = read_config(FAMILIES["mixtral"](tmp_path))

    with pytest.raises(InvalidConfig, match=reason):
        share_of(config, mesh)


@pytest.mark.parametrize("transport", ["shm", "grpc"])
@pytest.mark.parametrize("shared", [Role.PREFILL, Role.DECODE], ids=["shared P", "shared D"])
async def test_ranks_that_share_prompts_hand_their_kv_over_and_take_it(
    shared: Role, transport: str, ranks: RankProcesses, tmp_path: Path
) -> None:
    folder = FAMILIES["llama"](tmp_path)
    expected = transformers_greedy(folder, PROMPTS, MAX_TOKENS)
    sampling = replace(GREEDY, ignore_eos=False)
    on_ranks = engine_on_ranks(ranks, folder, CONFIG, Mesh(context=2), dtype="float32")

    with on_ranks as (several, _):

        def engine_of(role: Role) -> Engine:
            if role is shared:
                return several
            return assemble_engine(folder, CONFIG, dtype="float32", device="cpu")

        changes = {"transfer.transport": transport}
        async with running_fleet(prefill=1, make_engine=engine_of, changes=changes) as fleet:
            answers = [await fleet.ask(prompt, sampling) for prompt in PROMPTS]
            hits = [await fleet.ask(prompt, sampling) for prompt in PROMPTS]
            await fleet.assert_nothing_is_held()

    assert [answer.tokens for answer in answers] == expected
    assert [answer.tokens for answer in hits] == expected
    assert any(answer.receipt.kv_bytes for answer in answers)
