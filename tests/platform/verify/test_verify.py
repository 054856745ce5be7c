"""`baton verify` finds what is wrong, and nothing where all is well."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from tests.engine.adapted_answers import adapted
from tests.tiny_checkpoints import make_llama
from torch import Tensor
from typer.testing import CliRunner

from baton.core.messages import Receipt
from baton.core.replicas import Role
from baton.core.sampling import TokenLogprob
from baton.engine.assemble import engine_around
from baton.engine.batch.batch import Chunk, OnLayer, ignore_layer
from baton.engine.checkpoint.load import LoadedModel, load_model
from baton.engine.config import EngineConfig, SpeculationConfig
from baton.engine.engine import Engine
from baton.kernels.products.vocabulary_screen import ScreenedTokens
from baton.kernels.sampling.draw_token import Draws
from baton.kv_transfer.handoff.messages import KvPiece, OpenTransfer
from baton.kv_transfer.transport.memory import MemoryTransport
from baton.kv_transfer.transports import TRANSPORTS, usable_transports
from baton.platform.cli.main import app
from baton.platform.config.deployment import DeploymentConfig, override
from baton.platform.verify.cases import (
    CASES,
    GREEDY,
    NUM_OUTPUT,
    PERIODS,
    Case,
    make_prompts,
)
from baton.platform.verify.fleets import Answer, MakeEngine, running_fleet
from baton.platform.verify.run import verify
from baton.platform.verify.verdict import Evidence, Verdict, judge

BLOCKS_OF_4 = override(
    DeploymentConfig(), {"prefill.cache.block_size": 4, "decode.cache.block_size": 4}
)
COLD = CASES[:1]
REPEATING = tuple(case for case in CASES if case.is_repeating)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_llama(tmp_path_factory.mktemp("model"), max_position_embeddings=96)


@pytest.fixture(scope="module")
def loaded(folder: Path) -> LoadedModel:
    return load_model(folder)


def plain(loaded: LoadedModel, role: Role, config: EngineConfig) -> Engine:
    return engine_around(loaded, config, "cpu")


class ShiftedRunner:
    """Takes every prompt token for the one after it in the vocabulary."""

    def __init__(self, engine: Engine) -> None:
        self._runner = engine.runner
        self.info, self.cache = engine.runner.info, engine.runner.cache

    def forward(self, chunks: Sequence[Chunk], on_layer: OnLayer = ignore_layer) -> Tensor:
        size = self.info.vocab_size
        shifted = [c._replace(tokens=[(token + 1) % size for token in c.tokens]) for c in chunks]
        return self._runner.forward(shifted, on_layer)

    def logits(self, hidden: Tensor) -> Tensor:
        return self._runner.logits(hidden)

    def screened_tokens(self, hidden: Tensor, draws: Draws | None = None) -> ScreenedTokens | None:
        return self._runner.screened_tokens(hidden, draws)


def shifted_prefill(loaded: LoadedModel, role: Role, config: EngineConfig) -> Engine:
    engine = engine_around(loaded, config, "cpu")
    return engine if role is Role.DECODE else Engine(ShiftedRunner(engine), config)


class FlippingTransport(MemoryTransport):
    """Flips one bit of the first piece of each transfer."""

    name = "flipping"

    async def open(self, address: str, request: OpenTransfer) -> AsyncGenerator[KvPiece, None]:
        is_first = True
        async with aclosing(super().open(address, request)) as pieces:
            async for piece in pieces:
                views = piece.views
                if is_first:
                    data = bytearray(views[0])
                    data[0] ^= 1
                    views = (memoryview(data), *views[1:])
                is_first = False
                yield replace(piece, views=views)


async def verdicts(
    loaded: LoadedModel,
    make_engine: MakeEngine,
    transports: Sequence[str] = ("memory",),
    cases: Sequence[Case] = CASES,
    config: DeploymentConfig = BLOCKS_OF_4,
) -> list[Verdict]:
    trials = verify(make_engine, loaded.info, config, transports, cases)
    return [verdict async for verdict in trials]


@pytest.mark.parametrize(
    ("transports", "cases"),
    [
        pytest.param(("memory",), CASES, id="every case"),
        pytest.param(("memory", "grpc"), COLD, id="several transports"),
        pytest.param(usable_transports(), CASES, marks=pytest.mark.wide, id="every transport"),
    ],
)
async def test_nothing_is_found_where_all_is_well(
    transports: Sequence[str], cases: Sequence[Case], loaded: LoadedModel
) -> None:
    found = await verdicts(loaded, partial(plain, loaded), transports, cases)

    assert [(one.problems, one.first_difference) for one in found] == [((), None)] * len(found)
    assert {one.transport for one in found} == set(transports)
    assert len(found) == len(cases) * len(transports)
    assert all(one.is_good and one.num_equal == one.num_prompts for one in found)
    assert all(one.kv_bytes for one in found if "crowded" not in one.case)


async def test_a_prefill_engine_that_computes_something_else_is_found(loaded: LoadedModel) -> None:
    [cold] = await verdicts(loaded, partial(shifted_prefill, loaded), cases=COLD)

    assert not cold.is_good
    assert cold.num_equal < cold.num_prompts
    assert cold.problems == ()
    difference = cold.first_difference
    assert difference is not None
    assert difference.expected != difference.found
    assert 0 < difference.top2_gap < 100


@pytest.mark.parametrize("method", ["suffix", "ngram", "lookahead"])
async def test_where_tokens_are_drafted_some_are_right_and_none_is_missed(
    method: str, loaded: LoadedModel
) -> None:
    drafting = override(BLOCKS_OF_4, {"decode.speculation.method": method})

    found = await verdicts(loaded, partial(plain, loaded), cases=REPEATING, config=drafting)

    assert [one.case for one in found] == ["repeats", "repeats, crowded"]
    assert [(one.problems, one.num_equal) for one in found] == [((), found[0].num_prompts)] * 2
    assert all(one.num_drafted > one.num_accepted > 0 for one in found)


async def test_a_decode_replica_that_drafts_nothing_though_it_should_is_found(
    loaded: LoadedModel,
) -> None:
    drafting = override(BLOCKS_OF_4, {"decode.speculation.method": "suffix"})

    def lazy(role: Role, config: EngineConfig) -> Engine:
        return engine_around(loaded, replace(config, speculation=SpeculationConfig()), "cpu")

    [found] = await verdicts(loaded, lazy, cases=REPEATING[:1], config=drafting)

    assert found.problems == ("nothing was drafted, so nothing was tried",)


async def test_a_transport_that_flips_a_bit_is_found_though_the_tokens_are_right(
    loaded: LoadedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    kind = replace(
        TRANSPORTS["memory"], receiving=lambda parts: FlippingTransport(parts.switchboard)
    )
    monkeypatch.setattr("baton.kv_transfer.transports.TRANSPORTS", {**TRANSPORTS, "memory": kind})

    [cold] = await verdicts(loaded, partial(plain, loaded), cases=COLD)

    assert not cold.is_good
    assert cold.num_equal == cold.num_prompts
    assert any("pieces came corrupt" in problem for problem in cold.problems)


def answer(
    *tokens: int, transport: str = "memory", cached: int = 0, notes: tuple[str, ...] = ()
) -> Answer:
    logprobs = [TokenLogprob(token, -0.5, ((token, -0.5), (99, -1.25))) for token in tokens]
    receipt = Receipt(
        transport=transport, cached_tokens=cached, prompt_tokens=5, kv_bytes=8, notes=notes
    )
    return Answer(list(tokens), logprobs, receipt)


def judged(case: Case, found: list[Answer], **evidence: object) -> Verdict:
    facts: dict[str, Any] = {
        "leaks": (),
        "num_corrupt": 0,
        "num_squeezed": 0,
        "ms": 1.0,
        **evidence,
    }
    expected = [answer(1, 2, 3)] * len(found)
    return judge(case, "memory", Evidence(expected=expected, found=found, **facts))


def test_the_first_token_that_differs_is_named_with_how_near_it_was() -> None:
    verdict = judged(Case(name="c"), [answer(1, 2, 3), answer(1, 7, 8)])

    assert (verdict.num_equal, verdict.kv_bytes) == (1, 16)
    assert str(verdict.first_difference) == (
        "prompt of 5: output token 1 is 7, not 2 (the two best are 0.75 nats apart)"
    )


@pytest.mark.parametrize(("tolerance", "is_good"), [(0.0, False), (0.5, False), (0.8, True)])
def test_a_near_tie_is_counted_but_no_mistake(tolerance: float, is_good: bool) -> None:
    expected, found = [answer(1, 2, 3)], [answer(1, 7, 8)]  # 0.75 nats apart
    evidence = Evidence(
        expected=expected, found=found, leaks=(), num_corrupt=0, num_squeezed=0, ms=1.0
    )

    verdict = judge(Case(name="c"), "memory", evidence, tolerance=tolerance)

    assert verdict.is_good == is_good
    assert (verdict.num_equal, verdict.num_near_ties) == (0, int(is_good))


def test_where_sums_have_one_order_not_even_equal_tokens_excuse_another() -> None:
    tie = Answer([2], [TokenLogprob(2, -0.5, ((2, -0.5), (7, -0.5)))], answer(2).receipt)
    evidence = Evidence(
        expected=[tie], found=[answer(7)], leaks=(), num_corrupt=0, num_squeezed=0, ms=1.0
    )

    assert not judge(Case(name="c"), "memory", evidence, tolerance=0.0).is_good
    assert judge(Case(name="c"), "memory", evidence, tolerance=1e-6).is_good


def test_an_answer_that_ends_too_soon_differs() -> None:
    verdict = judged(Case(name="c"), [answer(1, 2)])

    assert verdict.first_difference is not None
    assert (verdict.first_difference.position, verdict.first_difference.found) == (2, None)


def test_a_case_that_tried_nothing_is_not_good() -> None:
    right = answer(1, 2, 3)
    local = answer(1, 2, 3, transport="", notes=("P was lost",))

    assert judged(Case(name="c"), [right]).is_good
    assert judged(Case(name="c"), [right, local]).problems == (
        "the KV of 1 did not travel: P was lost",
    )
    crowded = Case(name="c", is_crowded=True)
    assert judged(crowded, [right, local], num_squeezed=1).is_good
    assert not judged(crowded, [right]).is_good
    repeated = Case(name="c", is_repeated=True)
    assert judged(repeated, [answer(1, 2, 3, cached=4)]).is_good
    assert not judged(repeated, [right]).is_good
    drafting = Case(name="c", sampling=REPEATING[0].sampling)
    wrong = replace(right, receipt=replace(right.receipt, drafted_tokens=7))
    assert judged(drafting, [right]).is_good
    assert judged(drafting, [wrong], is_drafting=True).problems == (
        "none of 7 drafted tokens was right, so little was tried",
    )
    assert judged(Case(name="c"), [right], leaks=("D: 1 block",)).problems == ("D: 1 block",)


@pytest.mark.parametrize("max_model_len", [32, 60, 2048])
def test_prompts_leave_room_for_the_output_and_end_around_blocks(max_model_len: int) -> None:
    prompts = make_prompts(50, 16, max_model_len)

    lengths = [len(prompt) for prompt in prompts]
    varied = lengths[: -len(PERIODS)]
    assert make_prompts(50, 16, max_model_len) == prompts
    assert max(lengths) + NUM_OUTPUT < max_model_len
    assert len(set(varied)) == len(varied)
    assert [len(set(prompt)) for prompt in prompts[-len(PERIODS) :]] == list(PERIODS)
    assert all(0 <= token < 50 for prompt in prompts for token in prompt)
    assert GREEDY.max_tokens == NUM_OUTPUT


@pytest.mark.parametrize("max_model_len", range(NUM_OUTPUT + 2, 25))
def test_where_hardly_a_prompt_fits_none_is_empty(max_model_len: int) -> None:
    lengths = [len(prompt) for prompt in make_prompts(50, 16, max_model_len)]

    assert 1 <= min(lengths) <= max(lengths) < max_model_len - NUM_OUTPUT


def test_the_command_prints_a_table_or_json_and_exits_accordingly(folder: Path) -> None:
    options = ["--transport", "memory", "--case", "cold", "--block-size", "4"]

    table = CliRunner().invoke(app, ["verify", str(folder), *options])
    as_json = CliRunner().invoke(app, ["verify", str(folder), *options, "--json"])
    unknown = CliRunner().invoke(app, ["verify", str(folder), "--transport", "pigeon"])

    assert (table.exit_code, as_json.exit_code, unknown.exit_code) == (0, 0, 2)
    [row] = [line for line in table.stdout.splitlines() if "memory" in line]
    assert row.split()[:2] == ["memory", "cold"] and row.split()[-1] == "good"
    [verdict] = json.loads(as_json.stdout)
    assert verdict["is_good"] and verdict["first_difference"] is None
    assert "there is no 'pigeon'; choose --transport from 'memory', 'shm', " in unknown.stderr


async def test_prompts_take_turns_with_the_model_and_its_adapters(tmp_path: Path) -> None:
    base, folders, _ = adapted("llama", tmp_path)
    loaded = load_model(base, adapters=folders)
    config = override(BLOCKS_OF_4, {"prefill.replicas": 0, "decode.cache.num_blocks": 64})

    async with running_fleet(lambda _, config: engine_around(loaded, config, "cpu"), config) as one:
        found = await one.ask_all([(5, 6, 7, 8, 9)] * 6, GREEDY, at_once=False)

    assert [answer.receipt.adapter for answer in found] == ["", "first", "second"] * 2
    assert len({tuple(answer.tokens) for answer in found}) == 3
    assert [answer.receipt.cached_tokens for answer in found] == [0, 0, 0, 4, 4, 4]


def test_adapters_are_handed_over_by_the_command(tmp_path: Path) -> None:
    base, folders, _ = adapted("llama", tmp_path)
    adapters = [f"--adapter={name}={folder}" for name, folder in folders.items()]
    options = ["--transport", "memory", "--case", "prefix hit", "--block-size", "4", "--json"]

    found = CliRunner().invoke(app, ["verify", str(base), *adapters, *options])

    assert found.exit_code == 0, found.output
    [verdict] = json.loads(found.stdout)
    assert verdict["is_good"] and verdict["kv_bytes"]


@pytest.mark.parametrize("kv_dtype", ["int8", "int4"])
def test_kv_of_few_bits_is_tried_if_asked_for(folder: Path, kv_dtype: str) -> None:
    cases = ["--case", "chunked", "--case", "crowded"]
    options = ["--transport", "memory", "--block-size", "4", "--kv-cache-dtype", kv_dtype]

    found = CliRunner().invoke(app, ["verify", str(folder), *cases, *options, "--json"])

    assert found.exit_code == 0, found.stdout
    kv_bytes = {verdict["kv_bytes"] for verdict in json.loads(found.stdout)}
    assert 0 not in kv_bytes


def test_the_command_exits_with_1_when_tokens_differ(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def make_engine(
        loaded: LoadedModel, device: str, role: Role, config: EngineConfig, *, draft: None
    ) -> Engine:
        return shifted_prefill(loaded, role, config)

    monkeypatch.setattr("baton.platform.cli.runs.verify._make_engine", make_engine)

    result = CliRunner().invoke(app, ["verify", str(folder), "--case", "cold"])

    assert result.exit_code == 1
    assert "nats apart" in result.stdout.replace("\n", " ")
