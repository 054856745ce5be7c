"""The loads for measuring speculation: models, prompts and drafters.

code         the demo model and its draft model, on source code of the Python standard library
again        the same, with the prompts of the first round in each round
edited       the same, sent a second time with a few tokens of each prompt changed, as when a file
             is edited and written again
always       methods that look drafts up in texts, on code, without pausing when drafting does not
             pay; and lookahead without the n-grams it makes from wrong guesses
dummy        65 million random weights in bfloat16, read from memory in each pass; drafts have a set
             acceptance rate, and cost nothing, or a set share of a step for each token
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from random import Random

import torch
from tokenizers import Tokenizer

from baton.core.clock import Clock
from baton.engine.assemble import engine_around, load_draft
from baton.engine.checkpoint.load import LoadedModel, load_model
from baton.engine.config import CacheConfig, EngineConfig, SchedulerConfig, SpeculationConfig
from baton.engine.engine import Engine
from baton.engine.request.request import Request
from baton.engine.speculation.assemble import Drafting
from baton.engine.speculation.draft_budget import AdaptiveBudget, FixedBudget
from baton.engine.speculation.drafter import Draft
from baton.engine.speculation.lookahead import LookaheadDrafter
from baton.engine.speculation.speculation import Speculation
from baton.platform.models.model_folder import built_in_folder, find_model

MAX_TOKENS = 8
LOOKED_UP = ("suffix", "ngram", "lookahead")
HEADS = ("eagle", "p-eagle", "medusa")
PROMPT_LEN, NUM_NEW = 128, 128
NUM_EDITED = 3
"""Tokens of a prompt that are changed for the second time."""
Prompts = Callable[[Random, int], list[list[int]]]
"""Draws so many prompts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """One model, its prompts, and the methods that draft for it."""

    name: str
    model: LoadedModel
    prompts: Prompts
    temperature: float
    methods: Mapping[str, Callable[[], Engine]]
    """Builders of engines, by the name of their drafting method."""
    edits: Callable[[Random, Sequence[int]], list[int]] | None = None
    """Changes a prompt before it is sent a second time; only the second time counts."""


class KnowingDrafter:
    """Drafts from the answers of a plain run with random errors: of set acceptance and cost."""

    name = "knowing"

    def __init__(self, share: float, cost: float = 0.0, clock: Clock = time.monotonic) -> None:
        """A draft token, for all requests together, takes `cost` times a plain step."""
        self.is_costly = cost > 0
        self.answers: Mapping[str, Sequence[int]] = {}
        self.step_s = 0.0
        """Seconds of a plain step."""
        self._share = share
        self._cost = cost
        self._clock = clock
        self._random = Random(0)

    def propose(self, requests: Sequence[Request], max_tokens: int) -> list[Draft]:
        ends_at = self._clock() + self._cost * self.step_s * max_tokens
        drafts = [self._propose(request, max_tokens) for request in requests]
        while self._clock() < ends_at:
            pass
        return drafts

    def forget(self, request: Request) -> None:
        """Nothing to forget."""

    def _propose(self, request: Request, max_tokens: int) -> Draft:
        first = len(request.output)
        answer = self.answers[request.request_id][first : first + max_tokens]
        tokens = [token ^ (self._random.random() > self._share) for token in answer]
        return Draft(tokens, [self._share] * len(tokens))


def engine_of(
    model: LoadedModel,
    method: str = "off",
    draft: Drafting | None = None,
    *,
    is_adaptive: bool = True,
) -> Engine:
    config = EngineConfig(
        cache=CacheConfig(prefix_caching=False),
        scheduler=SchedulerConfig(max_batch_tokens=8192),
        speculation=SpeculationConfig(
            method=method,  # type: ignore[arg-type]
            max_tokens=MAX_TOKENS,
            adaptive=is_adaptive,
        ),
    )
    engine = engine_around(model, config, "cpu", draft=draft)
    if torch.get_num_threads() == 1:
        engine.clock = time.process_time
    return engine


def _knowing(model: LoadedModel, share: float, cost: float = 0.0) -> Engine:
    engine = engine_of(model)
    drafter = KnowingDrafter(share, cost, engine.clock)
    engine.speculation = Speculation(drafter, AdaptiveBudget(MAX_TOKENS))
    return engine


def _unrefined(model: LoadedModel) -> Engine:
    """Lookahead with the n-grams of the text only."""
    engine = engine_of(model)
    engine.speculation = Speculation(LookaheadDrafter(), FixedBudget(MAX_TOKENS))
    return engine


def code_prompts(tokenizer: Tokenizer) -> Prompts:
    files = ("argparse", "tarfile", "inspect", "typing", "subprocess", "shutil", "zipfile")
    texts = [tokenizer.encode(_source_of(name)).ids for name in files]

    def prompts(random: Random, count: int) -> list[list[int]]:
        chosen = [random.choice(texts) for _ in range(count)]
        starts = [random.randrange(len(text) - PROMPT_LEN) for text in chosen]
        return [t[at : at + PROMPT_LEN] for t, at in zip(chosen, starts, strict=True)]

    return prompts


def _source_of(name: str) -> str:
    module = __import__(name)
    assert module.__file__ is not None
    return Path(module.__file__).read_text()


def _again(prompts: Prompts) -> Prompts:
    """The same prompts in each round, as of agents that try again."""
    asked: dict[int, list[list[int]]] = {}

    def again(random: Random, count: int) -> list[list[int]]:
        if count not in asked:
            asked[count] = prompts(random, count)
        return asked[count]

    return again


def edited(random: Random, prompt: Sequence[int]) -> list[int]:
    """The prompt with a few tokens of its first half replaced by other tokens of it."""
    changed = list(prompt)
    for _ in range(NUM_EDITED):
        changed[random.randrange(len(changed) // 2)] = random.choice(prompt)
    return changed


def _any_tokens(vocab_size: int) -> Prompts:
    def prompts(random: Random, count: int) -> list[list[int]]:
        return [[random.randrange(2, vocab_size) for _ in range(PROMPT_LEN)] for _ in range(count)]

    return prompts


def loads(dummy_folder: Path) -> Iterator[Load]:
    demo, draft = (load_model(find_model(name)) for name in ("demo", "draft"))
    tokenizer = Tokenizer.from_file(str(find_model("demo") / "tokenizer.json"))
    looked_up = {name: partial(engine_of, demo, name) for name in LOOKED_UP}
    always = {
        f"{name}, always": partial(engine_of, demo, name, is_adaptive=False) for name in LOOKED_UP
    }
    heads = {}
    for name in HEADS:
        config = SpeculationConfig(method=name, model=str(built_in_folder(name)))  # type: ignore[arg-type]
        heads[name] = partial(
            engine_of, demo, name, load_draft(config, find_model("demo"), demo, "cpu")
        )
    always["lookahead unrefined, always"] = partial(_unrefined, demo)
    for temperature in (0.0, 0.7):
        yield Load(
            name=f"code, temperature {temperature:g}",
            model=demo,
            prompts=code_prompts(tokenizer),
            temperature=temperature,
            methods={**looked_up, "draft": partial(engine_of, demo, "draft", draft), **heads},
        )
        yield Load(
            name=f"always, temperature {temperature:g}",
            model=demo,
            prompts=code_prompts(tokenizer),
            temperature=temperature,
            methods=always,
        )
    yield Load(
        name="again",
        model=demo,
        prompts=_again(code_prompts(tokenizer)),
        temperature=0.0,
        methods=looked_up,
    )
    yield Load(
        name="edited",
        model=demo,
        prompts=code_prompts(tokenizer),
        temperature=0.0,
        methods=looked_up,
        edits=edited,
    )
    dummy = load_model(dummy_folder, load_format="dummy")
    yield Load(
        name="dummy",
        model=dummy,
        prompts=_any_tokens(dummy.info.vocab_size),
        temperature=0.0,
        methods={f"{share:.0%} right": partial(_knowing, dummy, share) for share in (0.8, 0.5, 0.0)}
        | {
            f"{share:.0%} right at {cost:.0%}": partial(_knowing, dummy, share, cost)
            for share, cost in ((0.8, 0.05), (0.8, 0.2), (0.5, 0.2))
        },
    )
