"""A model that may ask for a calculation before it answers.

The demo was not trained for that; serve one that was, such as `baton serve Qwen/Qwen3-0.6B`.
"""

from __future__ import annotations

import json
import sys
from typing import Any

from baton.client.client import BatonClient
from baton.client.errors import InvalidRequest
from baton.client.requests import ChatMessage

MAX_TURNS = 4
NUMBER = {"type": "number"}
TOOLS = [
    {
        "name": "multiply",
        "description": "The product of two numbers",
        "parameters": {
            "type": "object",
            "properties": {"a": NUMBER, "b": NUMBER},
            "required": ["a", "b"],
        },
    }
]


def call_tool(name: str, arguments: dict[str, Any]) -> str:
    """What goes wrong is told to the model, which may do better the next time."""
    try:
        if name != "multiply":
            return f"there is no tool {name!r}"
        return str(float(arguments["a"]) * float(arguments["b"]))
    except (KeyError, TypeError, ValueError) as error:
        return f"wrong arguments: {error!r}"


def main(target: str = "localhost:8001") -> None:
    messages: list[ChatMessage] = [{"role": "user", "content": "What is 12.5 times 3.2?"}]
    with BatonClient(target) as client:
        for _ in range(MAX_TURNS):
            answer = client.chat(messages, tools=TOOLS, max_tokens=200)
            messages.append(answer.message)
            for call in answer.tool_calls:
                content = call_tool(call.name, json.loads(call.arguments))
                print(f"{call.name}({call.arguments}) = {content}")
                messages.append({"role": "tool", "tool_call_id": call.id, "content": content})
            if not answer.tool_calls:
                print(answer.text)
                return


if __name__ == "__main__":
    try:
        main(*sys.argv[1:])
    except InvalidRequest as error:  # such as a chat template that knows no tools
        sys.exit(error.message)
