"""Tensor ranks that launch a pass before its tokens are read: each draws nothing, and waits for
nobody's host.

CUDA's part is played by `ComputingCapture`; the ranks are threads of this process, over Gloo.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
from tests.engine.computing_capture import graphs_of
from tests.engine.model_runs import make_prompt
from tests.engine.ranks.greedy_answers import CONFIG
from tests.engine.ranks.two_ranks import on_two_ranks
from tests.tiny_checkpoints import FAMILIES

from baton.core.sampling import SamplingParams
from baton.engine.batch.decoding import Decoding
from baton.engine.batch.static_batch import PassLimits
from baton.engine.cache_plan import plan_cache
from baton.engine.checkpoint.load import load_model
from baton.engine.engine import Engine
from baton.engine.mesh import orders
from baton.engine.mesh.ranks import MeshGroups
from baton.engine.ranks import decoding_turns
from baton.engine.ranks.assemble import following_runner, lead_runner
from baton.engine.ranks.lead import LeadRunner, follow
from baton.engine.request.request import Request

LIMITS = PassLimits(max_tokens=16, max_requests=4, max_blocks=16)
SPARE_BLOCK = 60
SAMPLINGS = (
    SamplingParams(temperature=0.0, max_tokens=30, ignore_eos=True),
    SamplingParams(temperature=0.9, seed=3, max_tokens=26, ignore_eos=True),
    SamplingParams(temperature=0.7, seed=5, max_tokens=21, frequency_penalty=0.8, top_p=0.9),
)


def answers(runner: LeadRunner) -> list[list[int]]:
    engine = Engine(runner, CONFIG)
    requests = [
        Request(str(row), make_prompt(4 + 5 * row, row), sampling=sampling)
        for row, sampling in enumerate(SAMPLINGS)
    ]
    for request in requests:
        engine.add(request)
    while engine.has_work:
        engine.step()
    assert engine.pool.num_in_use == 0
    return [request.output for request in requests]


@pytest.mark.parametrize("family", ["llama", "deepseek v3"])
def test_ranks_go_on_with_tokens_that_no_host_has_read(
    family: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = FAMILIES[family](tmp_path)
    turns: list[tuple[int, int]] = []

    def noted(tokens: Sequence[int], grown: Sequence[tuple[int, Sequence[int]]]) -> Sequence[int]:
        words = orders.turn_words(tokens, grown)
        turns.append((len(tokens), len(words)))
        return words

    monkeypatch.setattr(decoding_turns, "turn_words", noted)

    def only_known(self: Decoding) -> Sequence[int]:
        assert self._tokens is not None, "a host asks for tokens that only the device has"
        return self._tokens

    def run(groups: MeshGroups) -> list[list[list[int]]]:
        loaded = load_model(folder, dtype="float32", groups=groups)
        plan = plan_cache(loaded, CONFIG, "cpu").with_blocks(SPARE_BLOCK + 1)
        if groups.everyone.rank:
            own = following_runner(loaded, plan)
            follow(own)
            own.graphs = graphs_of(own, LIMITS, SPARE_BLOCK)
            follow(own)
            return []
        runner = lead_runner(loaded, plan)
        runner.cache.num_blocks = SPARE_BLOCK
        one_by_one = answers(runner)
        runner.close()
        told = [num_tokens for num_tokens, _ in turns]
        assert told and all(told), "tokens that the host has are told"
        turns.clear()
        monkeypatch.setattr(Decoding, "tokens", property(only_known))
        runner.own.graphs = graphs_of(runner.own, LIMITS, SPARE_BLOCK)
        ahead = answers(runner)
        runner.close()
        return [one_by_one, ahead]

    [(one_by_one, ahead), _] = on_two_ranks(run)

    assert ahead == one_by_one
    assert sum(not num_tokens for num_tokens, _ in turns) > 15, "launched ahead of their tokens"
    assert max(num_words for _, num_words in turns) < 16, "no table is told again"
