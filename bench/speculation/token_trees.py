"""The speedup of token trees over chains of drafts, from measured ranks and costs of rows.

    chain      a - b - c - d          the likeliest token of each position
    tree       a - b - c              as many rows, some for the second likeliest token
               |   ` - c'
               ` - b'

    ranks      how often the model's token is the drafter's first, second, ... choice at a position,
               given that all before it were accepted; the demo model and its drafters, on code
    prices     the time of a step that verifies so many rows a request, over that of a step without
               drafts
    won        tokens a second of the best tree over those of the best chain, each with the number
               of rows that pays best, at most `MAX_ROWS` a request

The best tree of n rows is the n most probable nodes; the probability of a node is the product of
the shares of the ranks on its path. What a tree costs beyond its rows (masks, moving KV, drafting
more branches) is not counted, so the result is an upper bound.

    python -m bench.speculation.token_trees [--batches 1 4] [--cpu-time]
"""

from __future__ import annotations

import heapq
import sys
import time
from collections.abc import Collection, Mapping, Sequence
from contextlib import ExitStack
from itertools import pairwise
from random import Random
from statistics import median
from unittest import mock

import torch
from tokenizers import Tokenizer
from torch import Tensor

from baton.core.sampling import SamplingParams
from baton.engine.assemble import engine_around, load_draft
from baton.engine.checkpoint.load import LoadedModel, load_model
from baton.engine.config import CacheConfig, EngineConfig, SchedulerConfig, SpeculationConfig
from baton.engine.engine import Engine
from baton.engine.request.request import Request
from baton.engine.sampling.sampler import Drawn, draw
from baton.engine.sampling.sampling_plan import SamplingPlan
from baton.engine.speculation import draft_model, growing_draft
from baton.engine.speculation.assemble import Drafting
from baton.engine.speculation.draft_budget import FixedBudget
from baton.engine.speculation.drafter import Draft, Drafter
from baton.engine.speculation.speculation import Speculation
from baton.platform.models.model_folder import built_in_folder, find_model
from bench.harness.command_line import benchmark_parser
from bench.harness.report import surroundings, table
from bench.harness.small_llama import model_folder
from bench.speculation.loads import HEADS, KnowingDrafter, code_prompts

MAX_DEPTH, MAX_RANK, MAX_ROWS = 8, 6, 32
PROMPT_LEN, NUM_NEW, NUM_PROMPTS = 128, 96, 12
STEPS, WARM_STEPS = 40, 8
ANY_TOKEN = 500
ROWS = (1, 2, 3, 4, 6, 8, 12, 16, 32)
"""Draft tokens a request whose cost is measured; others are interpolated."""

Ranks = Sequence[Sequence[float]]
"""The share of tokens, by position and by the drafter's rank of them."""


class Ranking:
    """Takes the place of drafters' sampling: records the rank of the model's own token, and returns
    that token, so that drafting continues after accepted tokens. For one request at a time."""

    def __init__(self, drafter: Drafter) -> None:
        self.name, self.is_costly = drafter.name, drafter.is_costly
        self._drafter = drafter
        self.answer: Sequence[int] = ()
        self._ahead: list[int] = []
        self._depth = 0
        self.counts = [[0] * (MAX_RANK + 1) for _ in range(MAX_DEPTH)]
        """Counts by position and rank; the last is of tokens that the drafter did not rank."""

    def propose(self, requests: Sequence[Request], max_tokens: int) -> list[Draft]:
        (request,) = requests
        self._ahead, self._depth = list(self.answer[len(request.output) :]), 0
        return self._drafter.propose(requests, min(max_tokens, len(self._ahead)))

    def forget(self, request: Request) -> None:
        self._drafter.forget(request)

    def draw_and_weigh(
        self, logits: Tensor, plan: SamplingPlan, eos_token_ids: Collection[int]
    ) -> tuple[Drawn, Tensor]:
        count = min(len(logits), len(self._ahead) - self._depth)
        right = torch.tensor(self._ahead[self._depth : self._depth + count])
        left, ranks = logits.clone(), torch.full((count,), MAX_RANK)
        for rank in range(MAX_RANK):
            again = SamplingPlan(plan.rows, logits.device)
            tokens = draw(left, again, eos_token_ids).tokens
            ranks[(tokens[:count] == right) & (ranks == MAX_RANK)] = rank
            left[torch.arange(len(left)), tokens] = -1e9
        for rank in ranks.tolist():
            self.counts[self._depth][rank] += 1
            self._depth += 1
        tokens[:count] = right
        are_finite = torch.ones(len(logits), dtype=torch.bool)
        return Drawn(tokens, are_finite), torch.ones(len(logits))


def ranks_of(
    demo: LoadedModel, method: str, draft: Drafting, prompts: Sequence[Sequence[int]], heat: float
) -> Ranks:
    plain, engine = _engine(demo), _engine(demo, method, draft)
    assert engine.speculation is not None
    reader, drafter = engine.speculation.reader, engine.speculation.drafter
    ranking = Ranking(drafter)
    engine.speculation = Speculation(ranking, FixedBudget(MAX_DEPTH), reader=reader)
    with (
        mock.patch.object(growing_draft, "draw_and_weigh", ranking.draw_and_weigh),
        mock.patch.object(draft_model, "draw_and_weigh", ranking.draw_and_weigh),
        mock.patch.object(growing_draft, "MIN_PROBABILITY", 0.0),
        mock.patch.object(draft_model, "MIN_PROBABILITY", 0.0),
    ):
        for number, prompt in enumerate(prompts):
            request, same = (_request(number, prompt, heat) for _ in range(2))
            _finish(plain, request)
            ranking.answer = request.output
            _finish(engine, same)
            if same.output != request.output:
                sys.exit(f"{method}: other tokens than without drafts")
    return [[n / sum(row) for n in row[:MAX_RANK]] for row in ranking.counts if sum(row)]


def prices(model: LoadedModel, prompts: Sequence[Sequence[int]]) -> list[float]:
    """Step time over that without drafts, by draft tokens a request. All drafts are wrong."""
    engines = {rows: wrong_engine(model, prompts, rows) for rows in (0, *ROWS)}
    times: dict[int, list[float]] = {rows: [] for rows in engines}
    # In turns, since other processes slow the machine down for seconds at a time.
    for step in range(STEPS):
        for rows, engine in engines.items():
            started = engine.clock()
            engine.step()
            if step >= WARM_STEPS:
                times[rows].append(engine.clock() - started)
    for rows, engine in engines.items():
        assert engine.stats.num_drafted >= rows * len(prompts) * (STEPS - WARM_STEPS)
    known = {rows: median(each) for rows, each in times.items()}
    # Fewer rows cannot take longer: the rest is noise.
    for more, fewer in pairwise(reversed(known)):
        known[fewer] = min(known[fewer], known[more])
    ratios = [1.0]
    for (low, at_low), (high, at_high) in pairwise(known.items()):
        for rows in range(low + 1, high + 1):
            share = (rows - low) / (high - low)
            ratios.append((at_low + share * (at_high - at_low)) / known[0])
    return ratios


def wrong_engine(model: LoadedModel, prompts: Sequence[Sequence[int]], rows: int) -> Engine:
    """An engine whose requests get so many draft tokens in each step, all wrong."""
    engine, drafter = _engine(model), KnowingDrafter(0.0)
    requests = [_request(i, prompt, 0.0) for i, prompt in enumerate(prompts)]
    drafter.answers = {each.request_id: [ANY_TOKEN] * 4 * NUM_NEW for each in requests}
    if rows:
        engine.speculation = Speculation(drafter, FixedBudget(rows))
    for each in requests:
        engine.add(each)
    return engine


def chain(ranks: Ranks) -> list[float]:
    """The mean number of accepted draft tokens of a chain, by its rows."""
    hope, total, totals = 1.0, 0.0, [0.0]
    for row in ranks:
        hope *= row[0]
        total += hope
        totals.append(total)
    return totals


def tree(ranks: Ranks) -> list[float]:
    """The mean number of accepted draft tokens of the best tree, by its rows."""
    total, totals = 0.0, [0.0]
    nodes = [(-share, 0) for share in ranks[0]]
    heapq.heapify(nodes)
    while nodes and len(totals) <= MAX_ROWS:
        hope, depth = heapq.heappop(nodes)
        total -= hope
        totals.append(total)
        if depth + 1 < len(ranks):
            for share in ranks[depth + 1]:
                heapq.heappush(nodes, (hope * share, depth + 1))
    return totals


def best(right: Sequence[float], ratios: Sequence[float]) -> tuple[float, int]:
    """The best speedup over plain decoding, and its number of rows."""
    return max(
        ((1 + right[rows]) / ratios[rows], rows) for rows in range(min(len(right), len(ratios)))
    )


def _request(number: int, prompt: Sequence[int], heat: float) -> Request:
    sampling = SamplingParams(
        temperature=heat, top_p=0.9, seed=number, max_tokens=NUM_NEW, ignore_eos=True
    )
    return Request(str(number), prompt, sampling=sampling)


def _finish(engine: Engine, request: Request) -> None:
    engine.add(request)
    while engine.has_work:
        engine.step()


def _engine(model: LoadedModel, method: str = "off", draft: Drafting | None = None) -> Engine:
    config = EngineConfig(
        cache=CacheConfig(prefix_caching=False),
        scheduler=SchedulerConfig(max_batch_tokens=8192),
        speculation=SpeculationConfig(method=method, max_tokens=MAX_DEPTH),  # type: ignore[arg-type]
    )
    engine = engine_around(model, config, "cpu", draft=draft)
    if torch.get_num_threads() == 1:
        engine.clock = time.process_time
    return engine


def _drafts(demo: LoadedModel) -> Mapping[str, Drafting]:
    found: dict[str, Drafting] = {"draft": load_model(find_model("draft"))}
    for name in HEADS:
        config = SpeculationConfig(method=name, model=str(built_in_folder(name)))  # type: ignore[arg-type]
        head = load_draft(config, find_model("demo"), demo, "cpu")
        assert head is not None
        found[name] = head
    return found


def main() -> None:
    parser = benchmark_parser(__doc__)
    parser.add_argument("--batches", type=int, nargs="*", default=[1, 4])
    parser.add_argument("--cpu-time", action="store_true")
    options = parser.parse_args()
    if options.cpu_time:
        torch.set_num_threads(1)
    demo = load_model(find_model("demo"))
    tokenizer = Tokenizer.from_file(str(find_model("demo") / "tokenizer.json"))
    prompts = code_prompts(tokenizer)(Random(0), NUM_PROMPTS)
    with ExitStack() as stack:
        dummy = load_model(stack.enter_context(model_folder()), load_format="dummy")
        priced = {
            (name, batch): prices(model, prompts[:batch])
            for name, model in (("demo", demo), ("dummy", dummy))
            for batch in options.batches
        }
    priced["free rows", 1] = [1.0] * (MAX_ROWS + 1)
    rows: list[list[str | float]] = [
        [f"{name}, batch {batch}", *[ratios[n] for n in ROWS]]
        for (name, batch), ratios in priced.items()
    ]
    print(
        table(("step time / plain step, by draft tokens", *map(str, ROWS)), rows),
        end="\n\n",
        flush=True,
    )
    ranked: list[list[str | float]] = []
    won: list[list[str | float]] = []
    for heat in (0.0, 0.7):
        for method, draft in _drafts(demo).items():
            ranks = ranks_of(demo, method, draft, prompts, heat)
            title = f"{method}, temperature {heat:g}"
            for depth in (0, 1, 3):
                if depth < len(ranks):
                    ranked.append([title, str(depth + 1), *ranks[depth][:4]])
            for (name, batch), ratios in priced.items():
                chained, branched = best(chain(ranks), ratios), best(tree(ranks), ratios)
                won.append(
                    [f"{title}; {name}", str(batch), chained[0], str(chained[1]), branched[0],
                     str(branched[1]), f"{100 * (branched[0] / chained[0] - 1):.1f}"]
                )  # fmt: skip
    print(
        table(
            ("share of accepted tokens by rank", "position", "first", "second", "third", "fourth"),
            ranked,
        ),
        end="\n\n",
    )
    won_header = (
        "method; costs of",
        "batch",
        "speedup, chain",
        "rows",
        "speedup, tree",
        "rows",
        "tree over chain, %",
    )
    print(table(won_header, won), surroundings(), sep="\n\n")


if __name__ == "__main__":
    main()
