"""What people's tools make of Baton: each in an environment of its own, unmodified.

Before it are gateways on ports (gateways.py), three of models whose chat templates know tools, each
in another format, one with the demo's, whose knows none. The model is scripted
(scripted_agent.py), all else is as it is served. `make test-clients` installs what is not there
yet and prints the table.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from tests.clients.environments import HERE, ROOT, clients, command, versions
from tests.clients.gateways import KEY, templates
from tests.clients.report import ROWS, Outcome
from tests.clients.scripted_agent import ANSWER, CITIES, TURNS

STEPS = ("answer", "stream", "tools")
STEPS_LIMIT_S = 600
WITHOUT_TOOLS = {"vllm_bench", "aider"}
"""They offer the model none."""

pytestmark = [pytest.mark.clients, pytest.mark.timeout(1200)]


@pytest.fixture(scope="session")
def gateways() -> Iterator[dict[str, dict[str, str]]]:
    """By model, where its gateway listens; a process of its own, that ends with this one."""
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.clients.gateways"],
        cwd=ROOT, env=environment(), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    with process:
        assert process.stdout is not None and process.stdin is not None
        yield json.loads(process.stdout.readline())
        process.stdin.close()


def environment(**added: str) -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": f"{ROOT / 'src'}:{ROOT}", **added}


@pytest.mark.parametrize("model", templates())
@pytest.mark.parametrize("client", clients())
def test_a_client_gets_an_answer_a_stream_and_its_tools_called(
    client: str,
    model: str,
    gateways: dict[str, dict[str, str]],
    tmp_path: Path,
    request: pytest.FixtureRequest,
) -> None:
    at = gateways[model]
    ran = run(client, model, at, tmp_path)
    told = map(json.loads, ran.stdout.splitlines())
    failures = {step["step"]: complaint(step) for step in told}
    if ran.returncode:  # it did not get as far as its steps
        failures = dict.fromkeys(STEPS, ran.stderr)
    outcome = Outcome(
        client=client,
        version=", ".join(f"{name} {number}" for name, number in versions(client).items()),
        model=model,
        failures=failures,
    )
    request.config.stash.setdefault(ROWS, []).append(outcome)

    assert set(STEPS[:2] if client in WITHOUT_TOOLS else STEPS) <= failures.keys()
    complaints = "\n".join(f"{step}: {why}" for step, why in failures.items() if why)
    assert not complaints, f"{complaints}\n{ran.stderr[-8000:]}"


def run(
    client: str, model: str, at: Mapping[str, str], folder: Path
) -> subprocess.CompletedProcess[str]:
    """In an empty folder, which is its home as well: what a user has configured stays out."""
    told = {
        "BATON_URL": at["url"],
        "BATON_GRPC": at["grpc"],
        "BATON_MODEL": model,
        "BATON_KEY": KEY,
        "BATON_CALLS": str(folder / "calls"),
        "HOME": str(folder),
        "PYTHONPATH": f"{HERE / 'shared'}:{ROOT / 'src'}",
    }
    return subprocess.run(
        command(client),
        cwd=folder,
        env=environment(**told),
        capture_output=True,
        text=True,
        timeout=STEPS_LIMIT_S,
    )


def complaint(step: Mapping[str, Any]) -> str:
    """What is wrong with a step's outcome; empty if nothing is."""
    if "error" in step:
        return str(step["error"])
    said = step["said"]
    if step["step"].startswith("tools"):
        return _complaint_of_tools(said, step["calls"])
    if step["step"].startswith("stream") and len(said) < 2:
        return f"came in one piece: {said}"
    text = said if isinstance(said, str) else "".join(said)
    return "" if text == ANSWER else f"said {text!r}"


def _complaint_of_tools(said: str, calls: Sequence[str]) -> str:
    """Each city once, in the order of turns; what a turn calls together may run in any order."""
    left = list(calls)
    for turn in TURNS:
        told, left = left[: len(turn)], left[len(turn) :]
        if {call.partition("=")[0] for call in told} != set(turn):
            return f"called {calls}"
    by_city = dict(call.split("=") for call in calls)
    expected = " ".join(f"{city}={by_city[city]}" for city in CITIES)
    return "" if said == expected and not left else f"said {said!r} of {calls}"
