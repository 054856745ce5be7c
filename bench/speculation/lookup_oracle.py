"""An upper bound for drafts that are looked up in texts: the speedup with an oracle, which tells
beforehand which draft tokens are right.

    answers    the demo model's greedy answers without speculation, on code
    drafts     what a method drafts after each token of them, from what it has seen so far
    verified   only the draft tokens that are right; each costs a row
    prices     the time of a step by rows a request, over that of a step without drafts: measured by
               bench/speculation/token_trees.py

    python -m bench.speculation.lookup_oracle [--batches 1 16] [--cpu-time]
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from random import Random

import torch
from tokenizers import Tokenizer

from baton.core.sampling import SamplingParams
from baton.engine.checkpoint.load import load_model
from baton.engine.engine import Engine
from baton.engine.request.request import Request
from baton.engine.speculation.drafter import Drafter
from baton.engine.speculation.ngram import NgramDrafter
from baton.engine.speculation.suffix import SuffixDrafter
from baton.platform.models.model_folder import find_model
from bench.harness.command_line import benchmark_parser
from bench.harness.report import surroundings, table
from bench.speculation.loads import MAX_TOKENS, NUM_NEW, code_prompts, engine_of
from bench.speculation.token_trees import prices

NUM_PROMPTS = 48
METHODS: Sequence[Callable[[], Drafter]] = (SuffixDrafter, NgramDrafter)


def answers_of(engine: Engine, prompts: Sequence[Sequence[int]]) -> list[Sequence[int]]:
    requests = [_request(number, prompt) for number, prompt in enumerate(prompts)]
    for request in requests:
        engine.add(request)
    while engine.has_work:
        engine.step()
    return [request.output for request in requests]


def foresight(
    drafter: Drafter,
    prompts: Sequence[Sequence[int]],
    answers: Sequence[Sequence[int]],
    ratios: Sequence[float],
) -> tuple[int, int, float]:
    """Tokens, steps, and the time of these in steps without drafts, while all requests run."""
    requests = [_request(number, prompt) for number, prompt in enumerate(prompts)]
    for request, answer in zip(requests, answers, strict=True):
        request.append(answer[0])
    num_tokens = num_steps = 0
    taken = 0.0
    while all(len(request.output) < NUM_NEW for request in requests):
        num_right = 0
        drafts = drafter.propose(requests, MAX_TOKENS)
        for request, answer, draft in zip(requests, answers, drafts, strict=True):
            to_come = answer[len(request.output) :]
            length = min(len(draft.tokens), len(to_come) - 1)
            right = 0
            while right < length and draft.tokens[right] == to_come[right]:
                right += 1
            request.extend(to_come[: right + 1])
            num_right += right
        num_tokens += len(requests) + num_right
        num_steps += 1
        taken += _between(ratios, num_right / len(requests))
    for request in requests:
        drafter.forget(request)
    return num_tokens, num_steps, taken


def rows(batches: Sequence[int]) -> Iterator[list[str | float]]:
    demo = load_model(find_model("demo"))
    tokenizer = Tokenizer.from_file(str(find_model("demo") / "tokenizer.json"))
    prompts = code_prompts(tokenizer)(Random(0), NUM_PROMPTS)
    answers = answers_of(engine_of(demo), prompts)
    for batch in batches:
        ratios = prices(demo, prompts[:batch])
        for make in METHODS:
            drafter = make()
            parts = [
                foresight(drafter, prompts[at : at + batch], answers[at : at + batch], ratios)
                for at in range(0, NUM_PROMPTS, batch)
            ]
            num_tokens, num_steps, taken = map(sum, zip(*parts, strict=True))
            a_step = num_tokens / batch / num_steps
            yield [drafter.name, str(batch), a_step, num_tokens / batch / taken, ratios[1]]


def _between(ratios: Sequence[float], num_rows: float) -> float:
    below = int(num_rows)
    above = min(below + 1, len(ratios) - 1)
    return ratios[below] + (num_rows - below) * (ratios[above] - ratios[below])


def _request(number: int, prompt: Sequence[int]) -> Request:
    sampling = SamplingParams(temperature=0.0, max_tokens=NUM_NEW, ignore_eos=True)
    return Request(str(number), prompt, sampling=sampling)


def main() -> None:
    parser = benchmark_parser(__doc__)
    parser.add_argument("--batches", type=int, nargs="*", default=[1, 16])
    parser.add_argument("--cpu-time", action="store_true")
    options = parser.parse_args()
    if options.cpu_time:
        torch.set_num_threads(1)
    header = ("method", "batch", "tokens a step", "times plain at most", "one row a request")
    print(table(header, list(rows(options.batches))), surroundings(), sep="\n\n")


if __name__ == "__main__":
    main()
