"""A head drafts on the lead for a model that is on several ranks, as well as for one on one rank,
and changes no bit."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.engine.models.test_mtp import with_head
from tests.engine.rank_processes import RankProcesses, engine_on_ranks
from tests.engine.ranks.data_places import DataPlaces, first_of, leave
from tests.engine.speculation.headed_engines import Waking
from tests.engine.speculation.reference_heads import (
    NUM_DRAFTED,
    EagleReference,
    make_medusa_heads,
)
from tests.far_apart import with_wide
from tests.tiny_checkpoints import make_deepseek_v3, make_llama, make_qwen3

from baton.core.messages import Pooling
from baton.core.sampling import SamplingParams, TokenLogprob
from baton.engine.assemble import assemble_engine
from baton.engine.config import CacheConfig, EngineConfig, SchedulerConfig, SpeculationConfig
from baton.engine.engine import Engine
from baton.engine.mesh.mesh import Mesh
from baton.engine.request.request import Request
from baton.engine.speculation.head_drafter import HeadDrafter
from baton.engine.speculation.speculation import Speculation

CONFIG = EngineConfig(
    cache=CacheConfig(block_size=4, num_blocks=96),
    scheduler=SchedulerConfig(prefill_chunk=40, max_batch_tokens=160, micro_batch_tokens=8),
)
TWO, STAGES, CONTEXT = Mesh(tensor=2), Mesh(pipeline=2), Mesh(context=2)
PROMPTS = [[(7 * place) % period + 3 for place in range(9 + period)] for period in (3, 5, 40)]
SAMPLINGS = (
    SamplingParams(
        temperature=0.0,
        max_tokens=16,
        ignore_eos=True,
        num_logprobs=2,
        logit_bias=((11, 50.0), (12, 50.0), (13, 50.0)),
    ),
    SamplingParams(
        temperature=0.9,
        top_p=0.9,
        frequency_penalty=0.1,
        seed=3,
        max_tokens=16,
        ignore_eos=True,
        num_logprobs=2,
        logit_bias=((11, 50.0), (12, 50.0)),
    ),
)
"""Outputs are of two or three tokens, so that some guesses of random heads are right."""

Told = dict[str, tuple[list[int], list[TokenLogprob], list[float]]]


def told(engine: Engine) -> Told:
    """The tokens of each request, all logprobs that come with them, and its embedding."""
    crowd = [
        Request(f"{number}-{place}", prompt, sampling=sampling)
        for number, sampling in enumerate(SAMPLINGS)
        for place, prompt in enumerate(PROMPTS)
    ]
    # Alone, a prompt in two pieces, of the first of which nothing is wanted.
    alone = [Request("last", PROMPTS[2], sampling=SAMPLINGS[0], pooling=Pooling.LAST)]
    found: Told = {}
    for requests in (crowd, alone):
        for request in requests:
            engine.add(request)
        while engine.has_work:
            for output in engine.step().outputs:
                tokens, logprobs, embedding = found.setdefault(
                    output.request.request_id, ([], [], [])
                )
                tokens += output.tokens
                logprobs += output.logprobs
                embedding += output.embedding
    assert found["last"][2] and len(found) == len(crowd) + 1
    return found


def rest_now_and_then(engine: Engine) -> None:
    reader = engine.speculation.reader if engine.speculation is not None else None
    assert isinstance(reader, HeadDrafter)
    engine.speculation = Speculation(reader, Waking(NUM_DRAFTED), reader=reader)


def drafting(method: Any, heads: Path | None) -> EngineConfig:
    speculation = SpeculationConfig(
        method=method, model=str(heads or ""), max_tokens=NUM_DRAFTED, adaptive=False
    )
    return replace(CONFIG, speculation=speculation)


def with_eagle(kind: Any, make: Callable[..., Path], at: Path) -> tuple[Path, Path]:
    target, heads = make(at / "target"), at / "head"
    EagleReference(kind, target, heads, is_parallel=kind == 3)
    return target, heads


def with_medusa(at: Path) -> tuple[Path, Path]:
    target, heads = make_llama(at / "target"), at / "heads"
    make_medusa_heads(heads, has_own_heads=False)
    return target, heads


MAKERS: dict[str, Callable[[Path], tuple[Path, Path | None]]] = {
    "eagle": lambda at: with_eagle(1, make_llama, at),
    "eagle of a tied table": lambda at: with_eagle(
        1, lambda folder: make_llama(folder, tie_word_embeddings=True), at
    ),
    "p-eagle": lambda at: with_eagle(3, make_qwen3, at),
    "mtp": lambda at: (with_head(make_deepseek_v3, at)[1], None),
    "medusa": with_medusa,
}
CASES = {
    f"{name} on {ranks}": (name, mesh)
    for name in MAKERS
    for ranks, mesh in (("two", TWO), ("two stages", STAGES), ("two that share prompts", CONTEXT))
}
FAR_APART = {"eagle of a tied table on two", "p-eagle on two stages"}


@pytest.mark.parametrize("case", with_wide(CASES, FAR_APART))
def test_a_head_drafts_as_on_one_rank_and_changes_no_bit(
    case: str, ranks: RankProcesses, tmp_path: Path
) -> None:
    name, mesh = CASES[case]
    folder, heads = MAKERS[name](tmp_path)
    config = drafting(name.split()[0], heads)
    alone = assemble_engine(folder, config, dtype="float32", device="cpu")
    told(alone)
    with engine_on_ranks(ranks, folder, CONFIG, mesh, dtype="float32") as (plain, _):
        expected = told(plain)

    with engine_on_ranks(ranks, folder, config, mesh, dtype="float32") as (engine, _):
        found, drafted = told(engine), engine.stats.num_drafted
        accepted = engine.stats.num_accepted
        if name == "p-eagle":  # layers are tapped now and then
            rest_now_and_then(engine)
            assert told(engine) == expected
            assert engine.stats.num_drafted > drafted
        assert engine.pool.num_in_use == 0

    assert found == expected
    assert drafted > accepted > 0
    assert (drafted, accepted) == (alone.stats.num_drafted, alone.stats.num_accepted)


def test_engines_that_share_experts_draft_with_a_head_each(
    places: DataPlaces, tmp_path: Path
) -> None:
    (_, folder), mesh = with_head(make_deepseek_v3, tmp_path), Mesh(data=2, expert=2)
    found, outcomes, stats = [], [], []
    for config in (CONFIG, drafting("mtp", None)):
        with first_of(places, folder, config, mesh, [PROMPTS], dtype="float32") as (engine, far):
            found.append(told(engine))
            leave(engine)
            stats.append(engine.stats)
        outcomes.append(far[0].outcome())

    assert found[0] == found[1]
    assert outcomes[0] == outcomes[1] and all(map(len, outcomes[0]))
    assert stats[1].num_drafted > stats[1].num_accepted > 0
