"""The command `llm`, with the server in `extra-openai-models.yaml`."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import steps
import yaml

home = Path(os.environ["HOME"]) / "llm"
home.mkdir()
os.environ["LLM_USER_PATH"] = str(home)
(home / "keys.json").write_text(f'{{"baton": "{steps.KEY}"}}')
model = {
    "model_id": "baton",
    "model_name": steps.MODEL,
    "api_base": f"{steps.URL}/v1",
    "api_key_name": "baton",
    "supports_tools": True,
    "supports_schema": True,
}
(home / "extra-openai-models.yaml").write_text(yaml.safe_dump([model]))
FUNCTIONS = "from steps import get_weather"

import llm  # noqa: E402  (it reads its folder's name when it is imported)


def said(*arguments: str) -> str:
    command = [str(Path(sys.executable).parent / "llm"), "-m", "baton", *arguments]
    ran = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True)
    if ran.returncode:
        raise RuntimeError(ran.stderr)
    return ran.stdout.removesuffix("\n")


def stream() -> list[str]:
    """As the command prints it, whole; by the package, which it calls, in pieces."""
    pieces = list(llm.get_model("baton").prompt(steps.QUESTION, stream=True))
    assert "".join(pieces) == said(steps.QUESTION)
    return pieces


def tools(*options: str) -> str:
    told = said("--functions", FUNCTIONS, "--chain-limit", "10", *options, steps.WEATHER_QUESTION)
    return told.removeprefix("Let me look.").strip()  # it prints what comes with the calls as well


steps.run(
    answer=lambda: said("--no-stream", steps.QUESTION),
    stream=stream,
    tools=lambda: tools("--no-stream"),
    tools_streamed=tools,
)
