"""`baton bench serve` on servers that do what they should, and on some that do not."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.platform.load_generator.fake_openai import (
    FakeOpenAi,
    crash,
    cut,
    error_in_stream,
    event,
    html,
    refused,
    served,
    silence,
    too_many,
)
from typer.testing import CliRunner, Result

from baton.platform.cli.main import app
from baton.platform.load_generator.answer import AnswerReader
from baton.platform.load_generator.outcome import Ending
from baton.platform.load_generator.prompts import COMMON_WORDS, IdWriter, WordWriter
from baton.platform.load_generator.workload import Segment, Source

SMALL = ("--input-length", 20, "--output-length", 3, "--warmup", 0)


@contextmanager
def in_background(fake: FakeOpenAi) -> Iterator[FakeOpenAi]:
    """The server has a thread of its own: the command has this one."""
    is_up, loop = threading.Event(), asyncio.new_event_loop()
    ends = asyncio.Event()

    async def serve() -> None:
        async with served(fake):
            is_up.set()
            await ends.wait()

    thread = threading.Thread(target=loop.run_until_complete, args=(serve(),))
    thread.start()
    try:
        assert is_up.wait(120)
        yield fake
    finally:
        loop.call_soon_threadsafe(ends.set)
        thread.join()
        loop.close()


def bench(fake: FakeOpenAi, *arguments: object) -> Result:
    words = [str(argument) for argument in (fake.url, *SMALL, *arguments)]
    return CliRunner().invoke(app, ["bench", "serve", *words])


def test_a_server_is_measured_and_every_request_is_kept(tmp_path: Path) -> None:
    out, raw, png = tmp_path / "out.json", tmp_path / "raw.jsonl", tmp_path / "out.png"
    files = ("--json", out, "--raw", raw, "--plot", png)

    with in_background(FakeOpenAi(cached_tokens=5)) as fake:
        result = bench(fake, "--rate", 200, "--num-requests", 6, "--slo-ttft", 60, *files)

    assert result.exit_code == 0, result.output
    found = json.loads(out.read_text())
    assert found["endings"] == {"completed": 6}
    assert found["ttft"]["num"] == 6 and found["itl"]["num"] == 6 * 2
    assert found["good_share"] == 1.0 and found["hit_ratio"] == 0.25
    assert found["setting"]["sizing"] == "exact: token ids"
    lines = [json.loads(line) for line in raw.read_text().splitlines()]
    assert [line["index"] for line in lines] == list(range(6))
    assert all(line["prompt_tokens"] == 20 and len(line["gaps_s"]) == 2 for line in lines)
    assert png.read_bytes().startswith(b"\x89PNG")
    assert "6 completed" in result.output and "p99" in result.output


def test_what_a_server_refuses_it_is_asked_once_and_then_goes_without() -> None:
    fake = FakeOpenAi(refuses=("ignore_eos", "min_tokens", "max_tokens_"), tells_usage=False)

    with in_background(fake):
        result = bench(fake, "--concurrency", 2, "--num-requests", 4)

    assert result.exit_code == 0, result.output
    assert "without ignore_eos" in result.output and "counted by events" in result.output
    assert all("ignore_eos" not in body and "stream_options" in body for body in fake.bodies)


def test_words_are_sized_by_what_the_server_counts() -> None:
    fake = FakeOpenAi(tokens_per_word=1.5, template_tokens=12)

    with in_background(fake):
        result = bench(
            fake, "--endpoint", "chat", "--input-length", 120, "--concurrency", 1,
            "--num-requests", 1,
        )  # fmt: skip

    assert "1.5 tokens a word, and 12 that the server adds" in result.output
    content = fake.bodies[-1]["messages"][0]["content"]
    assert round(len(content.split()) * 1.5) + 12 == 120


def test_whatever_a_server_does_is_counted_and_nothing_is_a_traceback(tmp_path: Path) -> None:
    out = tmp_path / "out.json"
    probes = (None, None)  # fields, token ids
    bad = (too_many, crash, html, cut, error_in_stream)
    fake = FakeOpenAi(failures=iter((*probes, *bad)))
    silent = FakeOpenAi(failures=iter((*probes, silence)))

    with in_background(fake):
        result = bench(
            fake, "--concurrency", 1, "--num-requests", 6, "--slo-e2e", 60, "--timeout", 120,
            "--json", out,
        )  # fmt: skip
    found = json.loads(out.read_text())
    with in_background(silent):
        bench(
            silent, "--concurrency", 1, "--num-requests", 1, "--slo-e2e", 60, "--timeout", 0.2,
            "--json", out,
        )  # fmt: skip
    of_silence = json.loads(out.read_text())

    assert result.exit_code == 0, result.output
    assert found["endings"] == dict.fromkeys(
        map(str, (Ending.COMPLETED, Ending.REJECTED, Ending.SERVER_ERROR, Ending.NO_STREAM,
                  Ending.CUT, Ending.STREAM_ERROR)), 1,
    )  # fmt: skip
    assert of_silence["endings"] == {str(Ending.TIMED_OUT): 1}
    assert (found["good_share"], of_silence["good_share"]) == (pytest.approx(1 / 6), 0.0)
    assert "the replica is gone" in result.output


async def not_allowed(request: Any, body: dict[str, Any]) -> Any:
    return refused("no such key", 401)


@pytest.mark.parametrize(
    ("fake", "arguments", "told"),
    [
        (FakeOpenAi(failures=iter([not_allowed])), ("--rate", 1), "no such key; give an --api-key"),
        (FakeOpenAi(failures=iter([html])), ("--rate", 1), "is this a server of OpenAI's API"),
        (FakeOpenAi(), (), "--rate, --concurrency or --trace"),
    ],
)
def test_what_cannot_be_measured_is_refused_in_one_line_with_the_remedy(
    fake: FakeOpenAi, arguments: tuple[object, ...], told: str
) -> None:
    with in_background(fake):
        result = bench(fake, *arguments)

    assert result.exit_code in (1, 2)
    assert told in result.stderr
    assert len(result.stderr.splitlines()) == 1


def test_a_server_that_is_not_there_is_said_to_be_so() -> None:
    result = bench(FakeOpenAi(url="http://127.0.0.1:1"), "--rate", 1)

    assert result.exit_code == 1
    assert "is the server up?" in result.stderr


def test_a_token_came_when_its_bytes_did_whatever_pieces_they_come_in() -> None:
    role = event({"choices": [{"delta": {"role": "assistant", "content": ""}}]})
    thought = event({"choices": [{"delta": {"reasoning_content": "hm"}}]})
    text = event({"choices": [{"delta": {"content": "x"}}]})
    end = event({"choices": [{"delta": {}, "finish_reason": "stop"}]})
    reader = AnswerReader()

    reader.feed(role + thought[:9], 1.0)
    reader.feed(thought[9:] + b": kept alive\n\n", 2.0)
    reader.feed(text + text, 3.0)
    reader.feed(end + b"data: [DONE]\n\n", 4.0)
    exchange = reader.finish()

    assert exchange.ending is Ending.COMPLETED
    assert list(exchange.token_times) == [2.0, 3.0, 3.0]


def test_equal_hash_ids_are_equal_tokens_and_others_differ_from_their_block_on() -> None:
    def prompt(*ids: int) -> list[Segment]:
        return [Segment(Source.HASH_ID, id_, 16) for id_ in ids]

    for writer in (
        IdWriter(np.arange(100, 900), seed=3),
        WordWriter(np.array(COMMON_WORDS.split(), dtype=object), 3, tokens_per_word=1.3),
    ):
        one, other = writer.write(prompt(7, 8, 9)), writer.write(prompt(7, 8, 5))
        again = writer.write([*prompt(7, 8), Segment(Source.HASH_ID, 9, 4)])
        first, second, third = (
            text if isinstance(text, list) else text.split() for text in (one, other, again)
        )
        shared = 32 if isinstance(one, list) else round(32 / 1.3)
        assert first[:shared] == second[:shared] == third[:shared]
        assert first[shared:] != second[shared:]
        assert first[: len(third)] == third
