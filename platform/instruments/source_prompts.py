"""Realistic prompts: source code of Python's standard library."""

from __future__ import annotations

import random
from importlib.util import find_spec
from pathlib import Path

from tokenizers import Tokenizer

MODULES = ("argparse", "inspect", "shutil", "subprocess", "tarfile", "typing", "zipfile")


class SourcePrompts:
    """Prompts of source text in a model's tokens; without a tokenizer a character is a token."""

    def __init__(self, folder: Path, vocab_size: int) -> None:
        file = folder / "tokenizer.json"
        texts = [_source_of(name) for name in MODULES]
        if file.is_file():
            tokenizer = Tokenizer.from_file(str(file))
            self._texts = [tokenizer.encode(text).ids for text in texts]
        else:
            self._texts = [[ord(char) % vocab_size for char in text] for text in texts]

    def prompt(self, num_tokens: int, seed: str) -> list[int]:
        """Different code for each seed; repeats from the start if the text is too short."""
        chance = random.Random(seed)
        text = chance.choice(self._texts)
        start = chance.randrange(len(text))
        return [text[(start + at) % len(text)] for at in range(num_tokens)]


def _source_of(module: str) -> str:
    spec = find_spec(module)
    if spec is None or spec.origin is None:
        raise ValueError(f"Python's {module} has no source here")
    return Path(spec.origin).read_text()
