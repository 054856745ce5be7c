"""Traces as they are published, read by the same words, and refused by line and field."""

from __future__ import annotations

import gzip
import json
import random
from pathlib import Path

import pytest

from baton.core.errors import InvalidConfig
from baton.platform.traces.reader import read_trace
from baton.platform.traces.ticks import spread

TURN = {"session": "a", "turn": 0, "gap_s": 2.5, "input_length": 600, "output_length": 7}


def mooncake(timestamp: float, input_length: int = 1000) -> dict[str, object]:
    ids = list(range(-(-input_length // 512)))
    sizes = {"input_length": input_length, "output_length": 5}
    return {"timestamp": timestamp, **sizes, "hash_ids": ids}


def write(folder: Path, *lines: dict[str, object] | str) -> Path:
    file = folder / "trace"
    texts = [line if isinstance(line, str) else json.dumps(line) for line in lines]
    file.write_text("\n".join(texts) + "\n")
    return file


def test_a_gzipped_mooncake_trace_begins_at_zero_and_tells_its_block_size(tmp_path: Path) -> None:
    file = tmp_path / "trace.jsonl.gz"
    lines = [mooncake(7500), mooncake(5000, 512), mooncake(9000, 2049)]
    file.write_bytes(gzip.compress("\n".join(map(json.dumps, lines)).encode()))

    trace = read_trace(file)

    assert [request.arrival_s for request in trace.requests] == [0.0, 2.5, 4.0]
    assert [request.hash_ids for request in trace.requests][1:] == [(0, 1), (0, 1, 2, 3, 4)]
    assert trace.block_size == 512
    assert not trace.is_closed_loop


def test_an_azure_trace_has_sizes_and_times_alone(tmp_path: Path) -> None:
    rows = ["2023-11-16 18:17:03.9799600,4808,10\r", "2023-11-16 18:17:04.0319600,3180,8"]

    trace = read_trace(write(tmp_path, "TIMESTAMP,ContextTokens,GeneratedTokens\r", *rows))

    first, second = trace.requests
    assert (first.input_length, first.output_length, first.hash_ids) == (4808, 10, ())
    assert second.arrival_s == pytest.approx(0.052)
    assert trace.block_size is None


def test_sessions_make_a_closed_loop_in_the_order_of_their_turns(tmp_path: Path) -> None:
    later = {**TURN, "turn": 1, "gap_s": 0, "hash_ids": [1, 2]}

    trace = read_trace(write(tmp_path, later, {**TURN, "session": 7}, TURN))

    assert trace.is_closed_loop
    assert {name: [turn.turn for turn in turns] for name, turns in trace.sessions().items()} == {
        "a": [0, 1],
        "7": [0],
    }
    assert trace.sessions()["a"][0].gap_s == 2.5


@pytest.mark.parametrize(
    ("lines", "told"),
    [
        ([mooncake(0), {**mooncake(1), "input_length": "9"}], "line 2: .*input_length"),
        ([mooncake(0), {"timestamp": 3, "input_length": 9}], "line 2: .*output_length"),
        ([mooncake(0), '{"timestamp"'], "line 2: "),
        ([TURN, TURN], "line 2: turn: session a has 0 already"),
        ([{**TURN, "gap_s": -1}], "line 1: .*gap_s"),
        (["TIMESTAMP,ContextTokens", "a,1"], "line 1: GeneratedTokens"),
        (["TIMESTAMP,ContextTokens,GeneratedTokens", "noon,1,2"], "line 2: TIMESTAMP: 'noon'"),
        (["TIMESTAMP,ContextTokens,GeneratedTokens", "2023-11-16 18:17,1"], "2: GeneratedTokens"),
        ([{**mooncake(0), "hash_ids": list(range(2000))}], "hash_ids: no block size"),
        ([""], "no request"),
    ],
)
def test_a_mistake_is_told_with_its_file_line_and_field(
    lines: list[dict[str, object] | str], told: str, tmp_path: Path
) -> None:
    with pytest.raises(InvalidConfig, match=f"{tmp_path}/trace.*{told}"):
        read_trace(write(tmp_path, *lines))


def test_bytes_that_are_no_text_are_refused_with_the_remedy(tmp_path: Path) -> None:
    (tmp_path / "trace").write_bytes(b"\x1f\x8bnot gzip at all")

    with pytest.raises(InvalidConfig, match="gzipped or not"):
        read_trace(tmp_path / "trace")


def test_rounded_arrivals_are_spread_over_their_ticks_the_same_way_for_a_seed(
    tmp_path: Path,
) -> None:
    random_ = random.Random(0)
    ticks = [3000 * tick - tick % 2 for tick in range(60)]  # with a clock's slips
    ticks = sorted([*ticks, *random_.choices(ticks, k=240)])
    trace = read_trace(write(tmp_path, *map(mooncake, ticks)))

    arrivals = [request.arrival_s or 0.0 for request in spread(trace, seed=1).requests]

    assert trace.tick_s == pytest.approx(3.0, abs=0.01)
    assert arrivals == sorted(arrivals)
    assert len(set(arrivals)) == 300
    assert 176.9 < arrivals[-1] <= 180.0
    assert sum(arrival % 3 for arrival in arrivals) / 300 == pytest.approx(1.5, abs=0.2)
    assert arrivals == [request.arrival_s for request in spread(trace, seed=1).requests]
    assert arrivals != [request.arrival_s for request in spread(trace, seed=2).requests]


def test_arrivals_that_were_not_rounded_stay_where_they_are(tmp_path: Path) -> None:
    random_ = random.Random(0)
    times = sorted(random_.uniform(0, 60_000) for _ in range(200))

    trace = read_trace(write(tmp_path, *map(mooncake, times)))

    assert trace.tick_s is None
    assert spread(trace, seed=1) is trace
