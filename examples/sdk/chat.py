"""A question, and a second one that builds on the answer."""

from __future__ import annotations

import sys

from baton.client.client import BatonClient
from baton.client.requests import ChatMessage


def main(target: str = "localhost:8001") -> None:
    messages: list[ChatMessage] = []
    with BatonClient(target) as client:
        for question in ("Write the function `add`.", "Write the function `mean`."):
            messages.append({"role": "user", "content": question})
            answer = client.chat(messages, max_tokens=80, temperature=0)
            messages.append(answer.message)
            print(f"> {question}\n{answer.text}\n")
            print(f"  {answer.usage.cached_tokens} of {answer.usage.prompt_tokens} tokens cached")


if __name__ == "__main__":
    main(*sys.argv[1:])
