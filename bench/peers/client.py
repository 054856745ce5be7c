"""The client that measures all engines: sends token ids, reads a stream of events, notes times.

It shares the cores with the server, so it parses nothing while a stream runs: it counts the words
in the received text (in `bench.peers.models` a token is a word), and reads the clock once for each
write of the server.
"""

from __future__ import annotations

import asyncio
import math
import random
import re
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

import msgspec

from bench.peers.models import WORD

FIRST_WORD = 64
"""The first token id that is a word; those below are letters and special tokens."""
TEXT = re.compile(rb'"text": ?"((?:[^"\\\\]|\\\\.)*)"')
MARK = WORD.strip().encode()
"""The word without its space: some engines strip the start of an answer."""
WINDOW = 16
"""Tokens over which ITL is averaged, since the gap between two tokens is too noisy."""
LIMIT_S = 240.0
"""Seconds for one answer."""


@dataclass(slots=True)
class Answer:
    """One answer. Times are seconds of time.perf_counter."""

    sent_at: float
    num_tokens: list[int] = field(default_factory=list)
    """Tokens of each write that carried any."""
    times: list[float] = field(default_factory=list)
    """When each of these writes arrived."""

    @property
    def first_s(self) -> float:
        """Time to the first token."""
        return self.times[0] - self.sent_at

    def token_s(self) -> list[float]:
        """Seconds a token over each WINDOW of tokens, or over all if they are fewer.

        Tokens of one write count as evenly spaced since the write before, so that the result does
        not depend on how many tokens an engine writes at once.
        """
        came: list[float] = []
        before = self.times[0]
        for at, count in zip(self.times, self.num_tokens, strict=True):
            came += [before + (at - before) * (token + 1) / count for token in range(count)]
            before = at
        window = min(WINDOW, len(came) - 1)
        return [
            (later - sooner) / window
            for sooner, later in zip(came, came[window:], strict=False)
            if window
        ]


@dataclass(frozen=True, slots=True)
class Asked:
    """Answers to requests that were sent at the same time."""

    answers: tuple[Answer, ...]

    @property
    def first_ms(self) -> float:
        return statistics.median(answer.first_s for answer in self.answers) * 1e3

    @property
    def output_rate(self) -> float:
        """Output tokens a second, from the first send to the last token, prefill included."""
        started = min(answer.sent_at for answer in self.answers)
        ended = max(answer.times[-1] for answer in self.answers)
        return sum(sum(answer.num_tokens) for answer in self.answers) / (ended - started)

    @property
    def steady_rate(self) -> float:
        """Output tokens a second of decoding alone: requests / median time between tokens; infinite
        where all came in one write."""
        gaps = [gap for answer in self.answers for gap in answer.token_s()]
        between_s = statistics.median(gaps)
        return len(self.answers) / between_s if between_s else math.inf


def prompt(num_tokens: int, vocab_size: int, seed: int) -> list[int]:
    return random.Random(seed).choices(range(FIRST_WORD, vocab_size), k=num_tokens)


async def ask(port: int, model: str, prompts: Sequence[Sequence[int]], max_tokens: int) -> Asked:
    """Send all requests at once, a connection each. Raises RuntimeError or TimeoutError."""
    bodies = [
        msgspec.json.encode(
            {
                "model": model,
                "prompt": list(tokens),
                "max_tokens": max_tokens,
                "temperature": 0,
                "ignore_eos": True,
                "stream": True,
            }
        )
        for tokens in prompts
    ]
    streams = [await asyncio.open_connection("127.0.0.1", port) for _ in bodies]
    try:
        async with asyncio.timeout(LIMIT_S):
            answers = await asyncio.gather(
                *(
                    _complete(reader, writer, body)
                    for (reader, writer), body in zip(streams, bodies, strict=True)
                )
            )
    finally:
        for _, writer in streams:
            writer.close()
    shortest = min(sum(answer.num_tokens) for answer in answers)
    if shortest < max_tokens / 2:  # a few of the tokens are no words
        raise RuntimeError(f"an answer of {shortest} tokens, when {max_tokens} were asked for")
    return Asked(tuple(answers))


async def _complete(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, body: bytes
) -> Answer:
    head = (
        "POST /v1/completions HTTP/1.1\r\nhost: bench\r\ncontent-type: application/json\r\n"
        f"content-length: {len(body)}\r\n\r\n"
    )
    answer = Answer(time.perf_counter())
    writer.write(head.encode() + body)
    header = await reader.readuntil(b"\r\n\r\n")
    if b" 200 " not in header.split(b"\r\n", 1)[0]:
        raise RuntimeError(f"{header.decode()}{(await reader.read(2000)).decode()}")
    if b"chunked" not in header.lower():
        raise RuntimeError(f"not a stream: {header.decode()}")
    while chunk := await _chunk(reader):
        if count := count_tokens(chunk):
            answer.times.append(time.perf_counter())
            answer.num_tokens.append(count)
    if not answer.times:
        raise RuntimeError("an answer without tokens")
    return answer


def count_tokens(write: bytes) -> int:
    """Tokens in one write of the server: of one or several events, the last maybe without text."""
    return sum(text.count(MARK) for text in TEXT.findall(write))


async def _chunk(reader: asyncio.StreamReader) -> bytes:
    """The next piece of a chunked body; empty at its end."""
    size = int(await reader.readuntil(b"\r\n"), 16)
    return (await reader.readexactly(size + 2))[:-2]
