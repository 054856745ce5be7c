"""The cost of a handoff: 1 prefill + 1 decode replica against 1 aggregated replica.

Two live deployments (`baton serve`, one torch thread a replica) of the demo model in float32, or of
another one, answer the same prompts, one after the other, taking turns to be first. No prompt is
asked twice of the same deployment, so none is found in a prefix cache.

    python -m bench.serving.handoff [--prefill-chunk TOKENS] [--model FOLDER --dtype bfloat16]
                                    [--prompts N]
"""

from __future__ import annotations

import asyncio
import statistics
import tokenize
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from baton.gateway.text.model_files import ModelFiles
from baton.gateway.text.tokenizer import TextTokenizer
from baton.platform.config.deployment import DEMO_MODEL
from baton.platform.models.model_folder import find_model
from bench.harness.command_line import benchmark_parser
from bench.harness.live_deployment import LiveDeployment
from bench.harness.report import surroundings, table
from bench.harness.sse_client import Connection, Streamed

PROMPT_LENS = (128, 512, 1536)
OUTPUT_LEN = 16
NUM_PROMPTS = 30
NUM_WARM_UP = 3
SOURCE = Path(tokenize.__file__).parent
"""Python's standard library: the demo model was trained on Python."""

ONE_THREAD = {"resources": {"num_threads": 1}}


@dataclass(frozen=True, slots=True)
class Answer:
    """Times in milliseconds since the request was sent, and the receipt."""

    first_ms: float
    second_ms: float
    gap_ms: float
    """The mean time between tokens; a write of the server may carry several."""
    receipt: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Setup:
    """What both deployments serve, and how."""

    model: str = DEMO_MODEL
    """A folder, or a name that `baton serve` knows."""
    dtype: str = "float32"
    prefill_chunk: int | None = None
    """Tokens of a prompt in one forward pass of the prefill replica; None: all."""
    num_prompts: int = NUM_PROMPTS
    """Prompts of each length."""

    def split(self) -> dict[str, Any]:
        """One prefill and one decode replica. KV is sent after each chunk of a prompt."""
        prefill = {**ONE_THREAD, "scheduler": {"prefill_chunk": self.prefill_chunk}}
        return self._config(prefill)

    def together(self) -> dict[str, Any]:
        return self._config({"replicas": 0})

    def _config(self, prefill: Mapping[str, Any]) -> dict[str, Any]:
        shared = {"model": self.model, "dtype": self.dtype}
        return {**shared, "prefill": prefill, "decode": ONE_THREAD}


QUICK = Setup(num_prompts=2)


def measure(setup: Setup) -> dict[int, tuple[list[Answer], list[Answer]]]:
    """Answers of the split deployment and of the single replica, by prompt length."""
    configs = (setup.split(), setup.together())
    with ExitStack() as stack:
        split, together = (stack.enter_context(LiveDeployment(config)) for config in configs)
        return asyncio.run(_measure((split.wait(), together.wait()), setup.num_prompts))


async def _measure(
    ports: tuple[int, int], num_prompts: int
) -> dict[int, tuple[list[Answer], list[Answer]]]:
    tokens = _source_tokens(sum(PROMPT_LENS) * (num_prompts + NUM_WARM_UP))
    connections = [await Connection.open(port) for port in ports]
    answers: dict[int, tuple[list[Answer], list[Answer]]] = {n: ([], []) for n in PROMPT_LENS}
    for turn in range(num_prompts + NUM_WARM_UP):
        for length in PROMPT_LENS:
            prompt, tokens = tokens[:length], tokens[length:]
            for which in ((0, 1), (1, 0))[turn % 2]:
                answer = _read(await connections[which].complete(_body(prompt)))
                if turn >= NUM_WARM_UP:
                    answers[length][which].append(answer)
    for connection in connections:
        await connection.close()
    return answers


def _body(prompt: Sequence[int]) -> dict[str, Any]:
    return {
        "prompt": prompt,
        "max_tokens": OUTPUT_LEN,
        "temperature": 0,
        "ignore_eos": True,
        "logprobs": 0,  # tokens without text are written, too
        "receipt": True,
    }


def _read(streamed: Streamed) -> Answer:
    first, second, *_, last = streamed.times
    return Answer(
        first_ms=first * 1e3,
        second_ms=second * 1e3,
        gap_ms=(last - first) * 1e3 / (OUTPUT_LEN - 1),
        receipt=streamed.last["baton"],
    )


def _source_tokens(num_tokens: int) -> list[int]:
    tokenizer = TextTokenizer(ModelFiles.read(find_model(DEMO_MODEL)).tokenizer_json)
    tokens: list[int] = []
    for path in sorted(SOURCE.glob("*.py")):
        if len(tokens) >= num_tokens:
            return tokens
        tokens += tokenizer.encode(path.read_text(), add_special_tokens=False)
    raise RuntimeError(f"the standard library has {len(tokens)} tokens only")


def _median(values: Iterable[float]) -> float:
    return statistics.median(values)


def report(setup: Setup) -> str:
    answers = measure(setup)
    times = table(
        (
            "prompt tokens", "TTFT, 1P+1D, ms", "one replica, ms", "ratio",
            "second token, 1P+1D, ms", "one replica, ms", "ratio", "ITL, 1P+1D, ms",
            "one replica, ms",
        ),
        [_times(length, *both) for length, both in answers.items()],
    )  # fmt: skip
    transfers = table(
        (
            "prompt tokens", "KV, MB", "prefill, ms", "transfer, ms", "beyond prefill, ms",
            "MB/s beyond prefill", "share of second token", "local prefill, ms",
        ),
        [_transfers(length, *both) for length, both in answers.items()],
    )  # fmt: skip
    cached = max(a.receipt["cached_tokens"] for both in answers.values() for a in both[0] + both[1])
    notes = [note for both in answers.values() for a in both[0] for note in a.receipt["notes"]]
    count = len(answers[PROMPT_LENS[0]][0])
    return "\n\n".join(
        (
            f"### Medians of {count} prompts each, {OUTPUT_LEN} output tokens, one at a time",
            times,
            "From the receipts of 1P+1D, and of the one replica in the last column:",
            transfers,
            f"Most tokens found in a prefix cache: {cached}. Mishaps in receipts: {len(notes)}.",
        )
    )


def _times(
    length: int, split: Sequence[Answer], together: Sequence[Answer]
) -> tuple[str | float, ...]:
    firsts = [_median(a.first_ms for a in answers) for answers in (split, together)]
    seconds = [_median(a.second_ms for a in answers) for answers in (split, together)]
    return (
        str(length),
        *firsts,
        firsts[0] / firsts[1],
        *seconds,
        seconds[0] / seconds[1],
        _median(a.gap_ms for a in split),
        _median(a.gap_ms for a in together),
    )


def _transfers(
    length: int, split: Sequence[Answer], together: Sequence[Answer]
) -> tuple[str | float, ...]:
    """A row a prompt length. A transfer opens when its prefill begins, so its cost is what it takes
    beyond the prefill."""
    beyond = [a.receipt["transfer_ms"] - a.receipt["prefill_ms"] for a in split]
    megabytes = [a.receipt["kv_bytes"] / 1e6 for a in split]
    return (
        str(length),
        _median(megabytes),
        _median(a.receipt["prefill_ms"] for a in split),
        _median(a.receipt["transfer_ms"] for a in split),
        _median(beyond),
        _median(size / ms * 1e3 for size, ms in zip(megabytes, beyond, strict=True)),
        _median(ms / a.second_ms for ms, a in zip(beyond, split, strict=True)),
        _median(a.receipt["prefill_ms"] for a in together),
    )


if __name__ == "__main__":
    parser = benchmark_parser(__doc__)
    parser.add_argument("--prefill-chunk", type=int, help="tokens in one forward pass; default all")
    parser.add_argument("--model", default=DEMO_MODEL, help="a folder; the demo model by default")
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--prompts", type=int, default=NUM_PROMPTS, help="of each length")
    given = parser.parse_args()
    setup = Setup(given.model, given.dtype, given.prefill_chunk, given.prompts)
    print(f"{surroundings()}\n\n{report(setup)}")
