"""Aider: its command's own entry, and the coder that this makes. It offers no tools."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import steps

os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"  # or it asks the internet for prices first
from aider.main import main

OPTIONS = (
    "--model", f"openai/{steps.MODEL}", "--openai-api-base", f"{steps.URL}/v1",
    "--openai-api-key", steps.KEY, "--no-git", "--yes-always", "--no-pretty", "--no-fancy-input",
    "--no-check-update", "--no-show-model-warnings", "--no-analytics", "--map-tokens", "0",
    "--edit-format", "diff",
)  # fmt: skip


def coder(*options: str) -> Any:
    """With a file in the chat."""
    Path("a.py").write_text("x = 1\n")
    return main([*OPTIONS, *options, "a.py"], return_coder=True)


def answer() -> str:
    return coder("--no-stream").run(with_message=steps.QUESTION)


def stream() -> list[str]:
    """Three turns of one conversation; the last one's."""
    talk = coder("--stream")
    turns = [list(talk.run_stream(steps.QUESTION)) for _ in range(3)]
    assert turns[0] == turns[1] == turns[2], turns
    return turns[-1]


steps.run(answer=answer, stream=stream)
