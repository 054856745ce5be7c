"""Text as it is generated, until there is enough of it."""

from __future__ import annotations

import sys

from baton.client.client import BatonClient


def main(target: str = "localhost:8001") -> None:
    num_lines = 0
    with (
        BatonClient(target) as client,
        client.stream("def fibonacci(n):", temperature=0.8, seed=7) as stream,
    ):
        for delta in stream:
            print(delta.text, end="", flush=True)
            num_lines += delta.text.count("\n")
            if num_lines >= 12:
                break  # leaving the stream stops the generation
    print()


if __name__ == "__main__":
    main(*sys.argv[1:])
