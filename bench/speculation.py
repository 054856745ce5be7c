"""What drafting wins and loses: the same requests with each method and without, turn by turn.

    rounds   plain, again, suffix, ...     new prompts in each; the first does not count
    turns    a few steps of each, in any order, as long as all of its requests run
    ratio    tokens a second of a method against plain decoding in the same round, median of rounds;
             that of `plain again` is what the machine does to all of them

    code         the demo model and its draft, on source of the Python standard library
    again        the same, each round with the prompts of the first
    always       the methods that look texts up, on code, never resting: what drafts are worth,
                 and what those of lookahead are if nothing is made of wrong guesses
    dummy        65 million made-up weights in bfloat16, read from memory in each pass; drafts are
                 right so often, and cost nothing to make

Engines stay from round to round: what they have learnt of prices stays, too. Outputs are compared:
a token that differs ends the run. `--cpu-time` counts the CPU seconds of one thread, on machines
that others use, too; the engines see no other clock.

    python -m bench.speculation [--batches 1 4 16] [--rounds 3] [--only code ...]
                               [--methods suffix ...] [--cpu-time]
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from random import Random
from statistics import median

import torch
from bench.report import surroundings, table
from bench.small_llama import model_folder
from tokenizers import Tokenizer

from baton.core.sampling import SamplingParams
from baton.engine.assemble import engine_around, load_draft
from baton.engine.checkpoint.load import LoadedModel, load_model
from baton.engine.config import CacheConfig, EngineConfig, SchedulerConfig, SpeculationConfig
from baton.engine.engine import Engine
from baton.engine.request.request import Request
from baton.engine.speculation.assemble import Drafting
from baton.engine.speculation.draft_budget import FixedBudget, PayingBudget
from baton.engine.speculation.drafter import Draft
from baton.engine.speculation.lookahead import LookaheadDrafter
from baton.engine.speculation.speculation import Speculation
from baton.platform.models.model_folder import built_in_folder, find_model

MAX_TOKENS = 8
LOOKED_UP = ("suffix", "ngram", "lookahead")
HEADS = ("eagle", "p-eagle", "medusa")
PROMPT_LEN, NUM_NEW = 128, 128
PLAIN, AGAIN = "plain", "plain again"
STRETCH = 4
"""Steps of an engine before it is another's turn."""
Prompts = Callable[[Random, int], list[list[int]]]
"""So many prompts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """One model, what it is asked, and who drafts."""

    name: str
    model: LoadedModel
    prompts: Prompts
    temperature: float
    methods: Mapping[str, Callable[[], Engine]]
    """By name: how an engine is made that drafts so."""


class KnowingDrafter:
    """Has the answers of a plain run, and errs at random: drafts of a set acceptance."""

    name = "knowing"
    is_costly = False

    def __init__(self, share: float) -> None:
        self.answers: Mapping[str, Sequence[int]] = {}
        self._share = share
        self._random = Random(0)

    def propose(self, requests: Sequence[Request], max_tokens: int) -> list[Draft]:
        return [self._propose(request, max_tokens) for request in requests]

    def forget(self, request: Request) -> None:
        """It keeps nothing."""

    def _propose(self, request: Request, max_tokens: int) -> Draft:
        first = len(request.output)
        answer = self.answers[request.request_id][first : first + max_tokens]
        tokens = [token ^ (self._random.random() > self._share) for token in answer]
        return Draft(tokens, [self._share] * len(tokens))


@dataclass(slots=True)
class Run:
    """Requests that one engine has, all at once, and what it took while all of them ran."""

    engine: Engine
    requests: Sequence[Request]
    seconds: float = field(default=0.0, init=False)
    num_steps: int = field(default=0, init=False)
    _num_before: int = field(init=False)
    _num_now: int = field(init=False)

    def __post_init__(self) -> None:
        """Prompts are not counted."""
        for request in self.requests:
            self.engine.add(request)
        self.engine.step()
        self._num_before = self._num_now = self._count()

    @property
    def is_full(self) -> bool:
        return self.engine.num_running == len(self.requests)

    @property
    def num_tokens(self) -> int:
        return self._num_now - self._num_before

    def go_on(self) -> None:
        """A stretch of steps."""
        started = self.engine.clock()
        for _ in range(STRETCH):
            if not self.is_full:
                break
            self.engine.step()
            self.num_steps += 1
        self.seconds += self.engine.clock() - started
        self._num_now = self._count()

    def finish(self) -> Mapping[str, Sequence[int]]:
        """What came of each request."""
        while self.engine.has_work:
            self.engine.step()
        return {request.request_id: request.output for request in self.requests}

    def _count(self) -> int:
        return sum(len(request.output) for request in self.requests)


def measure(load: Load, batch: int, num_rounds: int) -> Iterator[list[str | float]]:
    """A row a method, and one that says how far two that do the same are apart."""
    plain = _engine(load.model)
    engines = {PLAIN: plain, AGAIN: _engine(load.model)}
    engines |= {name: make() for name, make in load.methods.items()}
    ratios: dict[str, list[float]] = {name: [] for name in engines}
    lengths: dict[str, list[float]] = {name: [] for name in engines}
    rates: list[float] = []
    random = Random(batch)
    for number in range(num_rounds + 1):
        prompts = load.prompts(random, batch)
        expected = Run(plain, _requests(load, number, prompts)).finish()
        for engine in engines.values():
            drafter = engine.speculation.drafter if engine.speculation else None
            if isinstance(drafter, KnowingDrafter):
                drafter.answers = expected
        runs = {
            name: Run(engine, _requests(load, number, prompts)) for name, engine in engines.items()
        }
        _take_turns(list(runs.values()), random)
        for name, each in runs.items():
            if each.finish() != expected:
                sys.exit(f"{load.name}, {name}, batch {batch}: other tokens than without drafts")
            if number:
                rate = each.num_tokens / each.seconds
                plain_rate = runs[PLAIN].num_tokens / runs[PLAIN].seconds
                ratios[name].append(rate / plain_rate)
                lengths[name].append(each.num_tokens / batch / each.num_steps)
        if number:
            rates.append(runs[PLAIN].num_tokens / runs[PLAIN].seconds)
    for name in (AGAIN, *load.methods):
        yield [
            f"{load.name}, {name}", str(batch), median(rates), median(ratios[name]),
            min(ratios[name]), median(lengths[name]),
        ]  # fmt: skip


def _take_turns(runs: Sequence[Run], random: Random) -> None:
    """A machine that others use is slow for seconds: each has its part of them."""
    going = list(runs)
    while going:
        random.shuffle(going)
        for each in going:
            each.go_on()
        going = [each for each in going if each.is_full]


def _requests(load: Load, number: int, prompts: Sequence[Sequence[int]]) -> list[Request]:
    return [
        Request(
            f"{number}.{i}",
            prompt,
            sampling=SamplingParams(
                temperature=load.temperature,
                top_p=0.9,
                seed=1000 * number + i,
                max_tokens=NUM_NEW,
                ignore_eos=True,
            ),
        )
        for i, prompt in enumerate(prompts)
    ]


def _engine(
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


def _knowing(model: LoadedModel, share: float) -> Engine:
    engine = _engine(model)
    engine.speculation = Speculation(KnowingDrafter(share), PayingBudget(MAX_TOKENS))
    return engine


def _unrefined(model: LoadedModel) -> Engine:
    """Looks ahead by the n-grams of the text alone."""
    engine = _engine(model)
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
    """Each round the same, as agents ask that try again or write a file anew."""
    asked: dict[int, list[list[int]]] = {}

    def again(random: Random, count: int) -> list[list[int]]:
        if count not in asked:
            asked[count] = prompts(random, count)
        return asked[count]

    return again


def _any_tokens(vocab_size: int) -> Prompts:
    def prompts(random: Random, count: int) -> list[list[int]]:
        return [[random.randrange(2, vocab_size) for _ in range(PROMPT_LEN)] for _ in range(count)]

    return prompts


def loads(dummy_folder: Path) -> Iterator[Load]:
    demo, draft = (load_model(find_model(name)) for name in ("demo", "draft"))
    tokenizer = Tokenizer.from_file(str(find_model("demo") / "tokenizer.json"))
    looked_up = {name: partial(_engine, demo, name) for name in LOOKED_UP}
    always = {
        f"{name}, always": partial(_engine, demo, name, is_adaptive=False) for name in LOOKED_UP
    }
    heads = {}
    for name in HEADS:
        config = SpeculationConfig(method=name, model=str(built_in_folder(name)))  # type: ignore[arg-type]
        heads[name] = partial(
            _engine, demo, name, load_draft(config, find_model("demo"), demo, "cpu")
        )
    always["lookahead unrefined, always"] = partial(_unrefined, demo)
    for temperature in (0.0, 0.7):
        yield Load(
            name=f"code, temperature {temperature:g}",
            model=demo,
            prompts=code_prompts(tokenizer),
            temperature=temperature,
            methods={**looked_up, "draft": partial(_engine, demo, "draft", draft), **heads},
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
    dummy = load_model(dummy_folder, load_format="dummy")
    yield Load(
        name="dummy",
        model=dummy,
        prompts=_any_tokens(dummy.info.vocab_size),
        temperature=0.0,
        methods={
            f"{share:.0%} right": partial(_knowing, dummy, share) for share in (0.8, 0.5, 0.0)
        },
    )


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--batches", type=int, nargs="*", default=[1, 4, 16, 32, 64])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", nargs="*", default=[])
    parser.add_argument("--methods", nargs="*", default=[])
    parser.add_argument("--cpu-time", action="store_true")
    options = parser.parse_args()
    if options.cpu_time:
        torch.set_num_threads(1)
    rows: list[list[str | float]] = []
    with ExitStack() as stack:
        for load in loads(stack.enter_context(model_folder())):
            if options.only and not any(load.name.startswith(name) for name in options.only):
                continue
            chosen = {n: m for n, m in load.methods.items() if n in (options.methods or (n,))}
            load = replace(load, methods=chosen)
            for batch in options.batches:
                for row in measure(load, batch, options.rounds):
                    rows.append(row)
                    print(*row, file=sys.stderr, flush=True)
    header = ("load, method", "batch", "plain, tokens/s", "times that", "least", "tokens a step")
    print(table(header, rows), surroundings(), sep="\n\n")


if __name__ == "__main__":
    main()
