"""Greedy answers of an engine to requests with and without adapters, and PEFT's."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from tests.engine.model_runs import make_prompt
from tests.peft_adapters import ATTENTION, FEED_FORWARD, make_adapter, peft_greedy
from tests.tiny_checkpoints import FAMILIES, transformers_greedy

from baton.core.sampling import SamplingParams
from baton.engine.engine import Engine
from baton.engine.request.request import Request

MAX_TOKENS = 10
PROMPTS = [make_prompt(30), make_prompt(9, seed=1)]
NAMES = ("", "first", "second")
MODULES = (*ATTENTION, *FEED_FORWARD)


def adapted(
    family: str, path: Path, modules: Sequence[str] = MODULES
) -> tuple[Path, dict[str, Path], list[list[int]]]:
    """Base, adapters, and the answers to each prompt with each of `NAMES`."""
    base = FAMILIES[family](path / "base")
    folders = {
        name: make_adapter(base, path / name, changed, seed=seed)
        for seed, (name, changed) in enumerate((("first", modules), ("second", modules[-1:])))
    }
    expected = [
        peft_greedy(base, folders[name], prompt, MAX_TOKENS)
        if name
        else transformers_greedy(base, [prompt], MAX_TOKENS)[0]
        for prompt in PROMPTS
        for name in NAMES
    ]
    assert len({tuple(answer) for answer in expected}) == len(expected)
    return base, folders, expected


def answers(engine: Engine) -> list[list[int]]:
    sampling = SamplingParams(temperature=0.0, max_tokens=MAX_TOKENS, ignore_eos=True)
    requests = [
        Request(f"{number} {name}", prompt, sampling=sampling, salt=name.encode(), adapter=name)
        for number, prompt in enumerate(PROMPTS)
        for name in NAMES
    ]
    for request in requests:
        engine.add(request)
    while engine.has_work:
        assert not engine.step().is_stalled
    return [request.output for request in requests]
