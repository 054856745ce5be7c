"""Which of several texts is closest to a question."""

from __future__ import annotations

import sys

from baton.client.client import BatonClient

QUESTION = "read the lines of a file"
TEXTS = ["def readlines(self, hint=-1):", "def sqrt(x):", "class HTTPServer(TCPServer):"]


def main(target: str = "localhost:8001") -> None:
    with BatonClient(target) as client:
        question, *vectors = client.embed([QUESTION, *TEXTS]).embeddings
    scores = [sum(a * b for a, b in zip(question, vector, strict=True)) for vector in vectors]
    for score, text in sorted(zip(scores, TEXTS, strict=True), reverse=True):
        print(f"{score:.3f}  {text}")


if __name__ == "__main__":
    main(*sys.argv[1:])
