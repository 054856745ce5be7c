"""Two formats of one log, and what `baton serve` shows of what others write."""

from __future__ import annotations

import io
import logging
from collections.abc import Iterator

import msgspec
import pytest

from baton.core.clock import ManualClock
from baton.platform.cli.terminal.rays_words import ALL_OF_IT, in_one_line
from baton.platform.cli.terminal.worker_log import NodeLog, WorkerLog
from baton.platform.observe.logs import JsonLines, LogFormat, TextLines, level_of, start_log

NEW = f"Ray says: Something new; {ALL_OF_IT}"


@pytest.fixture
def logging_as_before() -> Iterator[None]:
    root, ours = logging.getLogger(), logging.getLogger("baton")
    before = (root.handlers[:], root.level, ours.level)
    yield
    root.handlers[:] = before[0]
    root.setLevel(before[1])
    ours.setLevel(before[2])


def lines_of(style: LogFormat) -> list[str]:
    out = io.StringIO()
    start_log(style, "decode-1", stream=out)
    log = logging.getLogger("baton.here")
    log.info("loading %s", "weights")
    try:
        raise ValueError("two\nlines")
    except ValueError:
        log.exception("a request failed", extra={"request_id": "r7"})
    return out.getvalue().splitlines()


@pytest.mark.usefixtures("logging_as_before")
def test_text_is_a_record_a_line_and_traces_stand_behind_bars() -> None:
    first, second, *trace = lines_of("text")

    assert first.endswith(" INFO decode-1: loading weights (baton.here)")
    assert second.endswith(" ERROR decode-1: a request failed (baton.here, request_id r7)")
    assert trace[-2:] == ["  | ValueError: two", "  | lines"]
    assert [level_of(line) for line in (first, second, trace[0])] == [20, 40, None]


@pytest.mark.usefixtures("logging_as_before")
def test_json_is_an_object_a_line_with_whatever_the_record_brings() -> None:
    first, second = map(msgspec.json.decode, lines_of("json"))

    assert first.keys() == {"ts", "level", "source", "logger", "message"}
    assert (first["level"], first["source"], first["logger"]) == ("INFO", "decode-1", "baton.here")
    assert second["request_id"] == "r7"
    assert second["exception"].endswith("ValueError: two\nlines")


def record(level: int, message: str) -> logging.LogRecord:
    return logging.LogRecord("baton.x", level, "x.py", 1, message, (), None)


@pytest.mark.parametrize("formatter", [TextLines("decode-1"), JsonLines("decode-1")])
def test_of_what_workers_write_warnings_are_shown_and_what_is_not_ours_is_not(
    formatter: logging.Formatter,
) -> None:
    out = io.StringIO()
    worker_log = WorkerLog(out, "text")
    warning = formatter.format(record(logging.WARNING, "no stream")).splitlines()
    info = formatter.format(record(logging.INFO, "a stage")).splitlines()

    worker_log({"pid": 7, "lines": [*warning, "a library prints", *info, "  | more of info"]})
    worker_log({"pid": 7, "lines": warning})
    worker_log({"pid": 8, "lines": ["  | of nobody"]})

    assert out.getvalue().splitlines() == warning * 2


def test_further_lines_of_a_shown_record_are_shown_though_another_process_comes_between() -> None:
    out = io.StringIO()
    worker_log = WorkerLog(out, "text")
    error, more = TextLines("d").format(record(logging.ERROR, "failed\ncause")).splitlines()

    worker_log({"pid": 7, "lines": [error]})
    worker_log({"pid": 8, "lines": ["noise"]})
    worker_log({"pid": 7, "lines": [more]})

    assert out.getvalue().splitlines() == [error, more]


def test_a_print_and_a_namesake_elsewhere_do_not_end_a_record() -> None:
    out = io.StringIO()
    worker_log = WorkerLog(out, "text")
    error, more = TextLines("d").format(record(logging.ERROR, "failed\ncause")).splitlines()
    stream = {"ip": "10.0.0.1", "pid": 7, "is_err": True}

    worker_log({**stream, "lines": [error]})
    worker_log({**stream, "is_err": False, "lines": ["a library prints"]})
    worker_log({**stream, "ip": "10.0.0.2", "lines": ["another machine's 7"]})
    worker_log({**stream, "lines": [more]})

    assert out.getvalue().splitlines() == [error, more]


def test_with_all_that_workers_write_json_remains_an_object_a_line() -> None:
    out = io.StringIO()
    worker_log = WorkerLog(out, "json", shows_all=True)
    info = JsonLines("decode-1").format(record(logging.INFO, "a stage"))

    worker_log({"pid": 7, "actor_name": "Decode", "lines": [info, "a library prints"]})

    first, second = map(msgspec.json.decode, out.getvalue().splitlines())
    assert (first["source"], first["message"]) == ("decode-1", "a stage")
    assert (second["source"], second["message"]) == ("Decode 7", "a library prints")


@pytest.mark.parametrize(
    ("text", "line"),
    [
        (
            "\x1b[33m(raylet) WARNING: 8 PYTHON worker processes have been started on node: 3ff07a",
            "",
        ),
        (
            "(raylet, ip=10.0.0.2) 2 Workers (tasks / actors) killed due to memory pressure (OOM), "
            "0 Workers crashed due to other reasons at node.\nTo see more, use `ray logs`",
            "Ray ended a process, for the machine's memory is nearly full; quantize the weights",
        ),
        (
            "A worker died or was killed while executing a task by an unexpected system error.\n"
            "To troubleshoot the problem, check the logs for the dead worker.",
            "a process died unasked; Serve starts another",
        ),
        ("Exception: The current node timed out during startup. This", "Ray did not come up in"),
        ("(raylet) Something new. And why.\n  File x", NEW),
        ("\n", ""),
    ],
)
def test_what_ray_says_is_one_line_with_what_to_do(text: str, line: str) -> None:
    told = in_one_line(text)

    assert told.startswith(line)
    assert bool(told) == bool(line)
    assert "\n" not in told


def test_a_process_that_died_has_the_name_that_it_had_in_the_log(
    caplog: pytest.LogCaptureFixture,
) -> None:
    worker_log = WorkerLog(io.StringIO(), "text")
    node_log = NodeLog(worker_log.names, shows_all=False)
    info = TextLines("decode-1").format(record(logging.INFO, "a stage"))
    died = "A worker died or was killed. Worker IP address: 10.0.0.{} Worker port: 3 Worker PID: 7 "

    worker_log({"ip": "10.0.0.1", "pid": 7, "lines": [info, "a library prints"]})
    node_log({"pid": "raylet", "is_err": False, "lines": [died.format(1), died.format(2)]}, False)

    first, second = caplog.messages
    assert first.startswith("process 7 (decode-1) died unasked; Serve starts another")
    assert second.startswith("process 7 died unasked")


def test_rays_node_is_heard_once_of_each_thing_and_in_our_log(
    caplog: pytest.LogCaptureFixture,
) -> None:
    clock = ManualClock()
    node_log = NodeLog({}, shows_all=False, clock=clock)

    for _ in range(3):
        node_log({"pid": "raylet", "is_err": False, "lines": ["Something new. And why."]}, False)
    assert [one.getMessage() for one in caplog.records] == [NEW]

    clock.advance(30.0)  # another process has died of the same
    node_log({"pid": "raylet", "is_err": False, "lines": ["Something new. And why."]}, False)
    assert [one.getMessage() for one in caplog.records] == [NEW, NEW]
