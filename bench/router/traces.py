"""Writes eleven synthetic traces with different demands on a router, for `baton simulate`.

    chat     sessions of a few short turns with one system prompt
    agent    sessions of many turns, seconds apart, with eight system prompts
    long     sessions of few turns, each of which adds a document
    systems  sessions of few turns with a hundred system prompts of 8,192 tokens
    together few sessions, all of which begin within seconds
    crowd    five times as many as `together`, which are shorter
    waves    sessions of which forty begin at the same moment, every two minutes
    uneven   mostly short sessions, and a few that bring most of the work
    hotdoc   every other prompt begins with the same 8,192 tokens: too many for one replica
    thrash   3,000 documents of 20,480 tokens, chosen by a power law: more than the caches hold
    burst    ten times the rate for 30 s of every 150 s

Sessions are closed loops. Ids stand for blocks of 512 tokens; the same seed writes the same bytes.

    python -m bench.router.traces FOLDER [--seed N]
"""

from __future__ import annotations

import json
import math
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any

from bench.harness.command_line import benchmark_parser

BLOCK_SIZE = 512
MAX_TOKENS = 120_000
NUM_PROMPTS = 8000
NUM_DOCUMENTS = 3000

Line = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Conversations:
    """Means of exponential distributions, except counts and system prompts."""

    num_sessions: int
    sessions_per_s: float
    turns: float
    system_tokens: int
    num_systems: int = 1
    user_tokens: float
    answer_tokens: float
    gap_s: float
    at_once: int = 1
    """Sessions that begin at the same moment."""
    turns_sigma: float | None = None
    """Sigma of a lognormal distribution of turns with mean `turns`; None: exponential."""

    def num_turns(self, random_: random.Random) -> int:
        if self.turns_sigma is None:
            return max(1, int(random_.expovariate(1 / self.turns)))
        middle = math.log(self.turns) - self.turns_sigma**2 / 2
        return max(1, int(random_.lognormvariate(middle, self.turns_sigma)))


SESSIONS = {
    "chat": Conversations(
        num_sessions=1500, sessions_per_s=1.0, turns=6, system_tokens=1024,
        user_tokens=800, answer_tokens=400, gap_s=30,
    ),
    "agent": Conversations(
        num_sessions=400, sessions_per_s=0.25, turns=25, system_tokens=4096, num_systems=8,
        user_tokens=1500, answer_tokens=300, gap_s=2,
    ),
    "long": Conversations(
        num_sessions=300, sessions_per_s=0.2, turns=5, system_tokens=512,
        user_tokens=12_000, answer_tokens=500, gap_s=60,
    ),
    "systems": Conversations(
        num_sessions=1500, sessions_per_s=1.5, turns=4, system_tokens=8192, num_systems=100,
        user_tokens=500, answer_tokens=300, gap_s=15,
    ),
    "together": Conversations(
        num_sessions=64, sessions_per_s=12.0, turns=30, system_tokens=2048,
        user_tokens=1500, answer_tokens=200, gap_s=10,
    ),
    "crowd": Conversations(
        num_sessions=320, sessions_per_s=40.0, turns=12, system_tokens=1024, num_systems=4,
        user_tokens=1200, answer_tokens=300, gap_s=15,
    ),
    "waves": Conversations(
        num_sessions=600, sessions_per_s=1 / 3, turns=8, system_tokens=2048, num_systems=3,
        user_tokens=1500, answer_tokens=300, gap_s=10, at_once=40,
    ),
    "uneven": Conversations(
        num_sessions=900, sessions_per_s=0.8, turns=6, system_tokens=1024, num_systems=20,
        user_tokens=1000, answer_tokens=400, gap_s=15, turns_sigma=1.4,
    ),
}  # fmt: skip


class Blocks:
    """Unused block ids."""

    def __init__(self) -> None:
        self._ids = count()

    def take(self, num_tokens: int) -> list[int]:
        """The ids of so many new blocks; whole blocks only."""
        return [next(self._ids) for _ in range(num_tokens // BLOCK_SIZE)]

    def extend(self, ids: list[int], num_tokens: int) -> None:
        ids += self.take(num_tokens - len(ids) * BLOCK_SIZE)


def conversations(kind: Conversations, seed: int) -> Iterator[Line]:
    random_, blocks = random.Random(seed), Blocks()
    systems = [blocks.take(kind.system_tokens) for _ in range(kind.num_systems)]
    begin_s = 0.0
    for session in range(kind.num_sessions):
        if session % kind.at_once == 0:
            begin_s += random_.expovariate(kind.sessions_per_s / kind.at_once)
        known = list(systems[int(kind.num_systems * random_.random() ** 3)])
        num_tokens = len(known) * BLOCK_SIZE
        for turn in range(kind.num_turns(random_)):
            num_tokens += int(random_.expovariate(1 / kind.user_tokens)) + 20
            blocks.extend(known, num_tokens)
            num_answered = int(random_.expovariate(1 / kind.answer_tokens)) + 10
            gap_s = random_.expovariate(1 / kind.gap_s) if turn else begin_s
            yield {
                "session": f"s{session}", "turn": turn, "gap_s": gap_s,
                "input_length": num_tokens, "output_length": num_answered, "hash_ids": known[:],
            }  # fmt: skip
            num_tokens += num_answered
            blocks.extend(known, num_tokens)
            if num_tokens > MAX_TOKENS:
                break


class Documents:
    """Prompts of an open loop: a shared document, and a question of their own."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)
        self._blocks = Blocks()
        self._hot = self._blocks.take(16 * BLOCK_SIZE)
        self._documents = [self._blocks.take(40 * BLOCK_SIZE) for _ in range(NUM_DOCUMENTS)]

    def hotdoc(self) -> Line:
        return self._asked(self._hot if self._random.random() < 0.5 else [], mean=3000, least=200)

    def thrash(self) -> Line:
        place = int(self._random.paretovariate(0.6)) % NUM_DOCUMENTS
        return self._asked(self._documents[place], mean=600, least=50)

    def burst(self) -> Line:
        place = int(NUM_DOCUMENTS * self._random.random() ** 4)
        return self._asked(self._documents[place][:10], mean=2000, least=50)

    def _asked(self, document: list[int], *, mean: float, least: int) -> Line:
        own = int(self._random.expovariate(1 / mean)) + least
        ids = document + self._blocks.take(own)
        num_tokens = len(document) * BLOCK_SIZE + own
        return {"input_length": num_tokens, "output_length": 200, "hash_ids": ids}


def arriving(prompt: Callable[[], Line], per_s: Callable[[float], float], seed: int) -> list[Line]:
    """Poisson arrivals, at a rate that may change with time."""
    random_, at_s, lines = random.Random(seed), 0.0, []
    for _ in range(NUM_PROMPTS):
        at_s += random_.expovariate(per_s(at_s))
        lines.append({"timestamp": at_s * 1e3, **prompt()})
    return lines


def loads(seed: int) -> Iterator[tuple[str, list[Line]]]:
    for name, kind in SESSIONS.items():
        yield name, list(conversations(kind, seed))
    yield "hotdoc", arriving(Documents(seed).hotdoc, lambda at_s: 5.0, seed)
    yield "thrash", arriving(Documents(seed).thrash, lambda at_s: 5.0, seed)
    in_turns = arriving(Documents(seed).burst, lambda at_s: 2.0 if at_s % 150 >= 30 else 20.0, seed)
    yield "burst", in_turns


def write(folder: Path, seed: int) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, lines in loads(seed):
        file = folder / f"{name}.jsonl"
        file.write_text("".join(json.dumps(line) + "\n" for line in lines))
        print(f"{file}: {len(lines):,} requests")


if __name__ == "__main__":
    parser = benchmark_parser(__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    write(arguments.folder, arguments.seed)
