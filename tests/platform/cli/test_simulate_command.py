"""`baton simulate`: rows for programs, a table for people, mistakes in a line."""

from __future__ import annotations

import json
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from baton.platform.cli.main import app

SESSIONS = (("a", 1, 1.0, 1000, [1]), ("a", 2, 2.0, 2000, [1, 2, 3]), ("b", 1, 1.5, 1000, [9]))


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    """Two sessions, whose turns are counted from 1."""
    names = ("session", "turn", "gap_s", "input_length", "hash_ids")
    rows = (dict(zip(names, row, strict=True)) for row in SESSIONS)
    file = tmp_path / "sessions.jsonl"
    file.write_text("".join(json.dumps({**row, "output_length": 11}) + "\n" for row in rows))
    return file


def baton(*arguments: object) -> Result:
    return CliRunner().invoke(app, ["simulate", *map(str, arguments), "--jobs", "1"])


def simulated(json_file: Path, *arguments: object) -> dict[str, Any]:
    result = baton(*arguments, "--json", json_file)
    assert result.exit_code == 0, result.output
    found: dict[str, Any] = json.loads(json_file.read_text())
    return found


def test_each_policy_and_seed_has_a_row_and_the_limit_stands_apart(
    trace: Path, tmp_path: Path
) -> None:
    plot = tmp_path / "out.png"
    arguments = (trace, "--policy", "all", "--load", 0.5, "--load", 1, "--seeds", 2)

    result = baton(*arguments, "--json", tmp_path / "out.json", "--plot", plot)

    assert result.exit_code == 0, result.output
    told = result.stderr.splitlines()
    assert len(told) == 13 * 2
    assert told[0] == "simulating: sessions.jsonl at load 0.5, limit (2 of 52 runs)"
    found = json.loads((tmp_path / "out.json").read_text())
    rows = found["rows"]
    assert len(rows) == 12 * 2 * 2 and len(found["limits"]) == 2 * 2
    assert {(row["load"], row["seed"]) for row in rows} == {(0.5, 0), (0.5, 1), (1.0, 0), (1.0, 1)}
    wanted = {"policy", "mean_s", "p99_s", "hit", "imbalance", "goodput", "rejected"}
    assert all(wanted <= row.keys() for row in rows)
    assert plot.read_bytes().startswith(b"\x89PNG")


def test_a_turn_comes_after_the_answer_before_it_and_its_gap(trace: Path, tmp_path: Path) -> None:
    """One replica, 1,000 tokens a second, 0.1 s a token of an answer.

    a 1   comes at 1.0, computed until 2.0; its answer of 11 tokens ends at 3.0
    b 1   comes at 1.5, computed until 3.0
    a 2   comes at 5.0, 512 of its tokens are cached: computed until 6.488
    """
    arguments = ("--policy", "cost", "--prefill-rate", 1000, "--itl", 0.1, "--replicas", 1)

    row = simulated(tmp_path / "out.json", trace, *arguments, "--seeds", 1)["rows"][0]

    assert row["load"] is None
    assert row["duration_s"] == pytest.approx(6.488)
    assert row["mean_s"] == pytest.approx((1.0 + 1.5 + 1.488) / 3)
    assert row["hit"] == pytest.approx(512 / 4000)


def test_the_table_marks_the_best_of_each_column_and_shows_what_none_can_beat(trace: Path) -> None:
    policies = ("--policy", "cost", "--policy", "random")

    result = baton(trace, *policies, "--prefill-rate", 1000, "--replicas", 2)

    assert result.exit_code == 0, result.output
    lines = {words[0]: words[1:] for line in result.stdout.splitlines() if (words := line.split())}
    assert lines["cost"][2] == "0.128*" and lines["limit"][2] == "0.128"
    assert not lines["random"][2].endswith("*")


def test_a_fleet_has_a_row_of_times_to_first_token_and_between_tokens(
    trace: Path, tmp_path: Path
) -> None:
    role = {"step_times": {"constant_s": 0.01, "token_s": 0.001}, "num_blocks": 99}
    device = tmp_path / "device.json"
    device.write_text(json.dumps({"prefill": role, "decode": role, "links": {"front_s": 0.5}}))
    fleet = ("--decode", 1, "--prefill", 1, "--device", device, "--gateways", 2)
    arguments = (*fleet, "--slo-class", "quick=9,0.02:1", "--tenant", "reports=1,weight=2")

    found = simulated(tmp_path / "out.json", trace, *arguments, "--policy", "all", "--seeds", 1)

    assert len(found["rows"]) == 12 and found["setup"]["links"]["front_s"] == 0.5
    row = found["rows"][-1]
    assert row["p50_s"] > 0.5 + 1.0 and row["itl_p50_s"] == pytest.approx(0.011)
    assert row["num_requests"] == 3 and row["rejected"] == 0
    assert row["goodput_by_class"] == {"quick": 1.0}
    assert row["tenants"]["reports"]["num_requests"] == 3


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (("--prefill", "2"), "--decode: "),
        (("--decode", "2"), "--device: "),
        (("--decode", "2", "--device", "x.csv:a,b,1"), "No such file"),
        (("--decode", "2", "--device", "x.json", "--prefill-rate", "5"), "--prefill-rate: "),
        (
            ("--decode", "1", "--device", "x.json", "--tenant", "reports=1.5"),
            "--tenant reports=1.5: ",
        ),
        (("--tenant", "reports=0.5"), "--decode: "),
        (("--load", "0"), "--load 0: "),
        (("--load", "1", "--prefill-rate", "5"), "give one"),
        (("--policy", "best"), "sticky-until-saturated"),
        (("--block-size", "500"), "stand for 512 tokens"),
        (("--json", "/no/such/folder/out.json"), "--json"),
    ],
)
def test_a_mistake_is_told_in_one_line(trace: Path, arguments: tuple[str, ...], named: str) -> None:
    result = baton(trace, *arguments)

    assert result.exit_code == 2
    assert named in result.stderr and result.stderr.count("\n") == 1


class KeyedGateway(BaseHTTPRequestHandler):
    """Has replicas that have not run a step, for who has the key."""

    def do_GET(self) -> None:
        has_key = self.headers["authorization"] == "Bearer root"
        data = b'{"pools": {"decode": []}}' if has_key else b"{}"
        self.send_response(200 if has_key else 401)
        self.send_header("content-length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, format: str, *args: Any) -> None:
        """Quietly."""


def test_a_gateway_that_asks_for_a_key_gets_it(trace: Path) -> None:
    with HTTPServer(("127.0.0.1", 0), KeyedGateway) as server:
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        device = ("--decode", 1, "--device", f"http://127.0.0.1:{server.server_port}")
        refused, taken = baton(trace, *device), baton(trace, *device, "--api-key", "root")
        server.shutdown()

    assert "--api-key" in refused.stderr
    assert "have not run enough steps" in taken.stderr


def test_a_trace_that_is_missing_is_told_in_one_line(tmp_path: Path) -> None:
    result = baton(tmp_path / "none.jsonl")

    assert result.exit_code == 2 and "No such file" in result.stderr


def test_pools_that_follow_a_load_are_shown_beside_pools_that_do_not(
    tmp_path: Path,
) -> None:
    role = {"step_times": {"constant_s": 0.01, "token_s": 0.001}, "num_blocks": 99}
    device, load = tmp_path / "device.json", tmp_path / "load.jsonl"
    device.write_text(json.dumps({"prefill": role, "decode": role}))
    lines = [{"timestamp": at * 1e3, "input_length": 400, "output_length": 5} for at in range(12)]
    load.write_text("\n".join(map(json.dumps, lines)))
    pools = ("--decode", 1, "--prefill", 1, "--device", device, "--planner", "--seeds", 1)

    found = simulated(tmp_path / "out.json", load, *pools, "--slo-ttft", 2, "--cold-start", 1)
    shown = baton(load, *pools, "--slo-ttft", 2)
    together = ("--decode", 1, "--device", device, "--planner", "--seeds", 1, "--cold-start", 1)
    mixed = simulated(tmp_path / "out.json", load, *together)

    assert mixed["rows"][0]["prefill"] == 0 and mixed["rows"][0]["kept"] == 1.0
    assert "decode replicas compute prompts" in mixed["rows"][0]["decisions"][0]["reasons"][0]
    names = [row["name"] for row in found["rows"]]
    assert names == ["planned", "equal cost", "twice the cost"]
    assert found["rows"][0]["kept"] == 1.0 and found["rows"][0]["decisions"]
    assert found["rules"]["ttft_s"] == 2.0
    for word in ("twice the", "1 prefill, 1 decode", "requests a second", "within the 2 s"):
        assert word in shown.output
    assert baton(load, "--planner").exit_code == 2
