"""What the programs of Python clients share; it needs nothing but Python.

A program says how its client answers, streams and calls tools; each step becomes a line of JSON,
with what came of it or with the client's own words why not.
"""

from __future__ import annotations

import asyncio
import inspect
import json
import os
import random
import sys
import traceback
from collections.abc import Awaitable, Callable
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

URL = os.environ["BATON_URL"]
GRPC = os.environ["BATON_GRPC"]
MODEL = os.environ["BATON_MODEL"]
KEY = os.environ["BATON_KEY"]
CALLS = Path(os.environ["BATON_CALLS"])
"""What the tool told, a line a call: some clients call it in a process of their own."""

QUESTION = "Say something."
WEATHER_QUESTION = "How warm is it in Oslo, Rome, Lima and Cairo?"
SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {"city": {"type": "string", "description": "Its name."}},
    "required": ["city"],
}
DESCRIPTION = "Tell how warm it is in a city."
OPENAI_TOOL: dict[str, Any] = {
    "type": "function",
    "function": {"name": "get_weather", "description": DESCRIPTION, "parameters": SCHEMA},
}


def get_weather(city: str) -> str:
    """Tell how warm it is in a city.

    Args:
        city: Its name.
    """
    told = f"{city}={random.randrange(1000, 10_000)}"
    with CALLS.open("a") as calls:
        calls.write(told + "\n")
    return told


Said = str | list[str]
Step = Callable[[], Said | Awaitable[Said]]


def run(**steps: Step) -> None:
    """Each returns the text that its client has, or the pieces of a stream."""
    with asyncio.Runner() as runner:
        for name, step in steps.items():
            CALLS.write_text("")
            try:
                with redirect_stdout(sys.stderr):  # some tell there what they do
                    result = step()
                    said = runner.run(_awaited(result)) if inspect.isawaitable(result) else result
                outcome: dict[str, Any] = {"said": said}
            except Exception as error:
                traceback.print_exc()
                outcome = {"error": f"{type(error).__name__}: {error}"}
            calls = CALLS.read_text().split()
            print(json.dumps({"step": name, "calls": calls, **outcome}), flush=True)


async def _awaited(result: Awaitable[Said]) -> Said:
    return await result
