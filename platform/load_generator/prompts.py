"""Generates planned prompts, as token ids or as words.

Equal segments give equal tokens in every run with the same seed, whichever prompt they are in;
other segments are drawn anew, so that prompts part where their segments do.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from tokenizers import Tokenizer

from baton.core.errors import InvalidConfig
from baton.platform.load_generator.workload import Segment

COMMON_WORDS = """
    time year people way day man thing woman life child world school state family student group
    country problem hand part place case week company system program question work government number
    night point home water room mother area money story fact month lot right study book eye job word
    business issue side kind head house service friend father power hour game line end member law
    car city community name president team minute idea body information back parent face level
    office door health person art war history party result change morning reason research girl guy
    moment air teacher force education foot boy age policy music market sense nation plan college
    interest death experience effect use class control field development role effort rate heart drug
    show leader light voice wife police mind price report decision view relationship town road arm
    difference value building action model season society tax director position player record paper
    space ground form event matter center table court north south west east food land stage bank
"""
"""Words that are one or two tokens in most tokenizers."""
SPACES = ("\u0120", "\u2581")
"""The first character of tokens that follow a space, in byte-level and SentencePiece tokenizers."""
MIN_WORDS = 64
"""The fewest single-token words with which a tokenizer is used for prompts."""
MAX_WORDS = 4096
GOLDEN = np.uint64(0x9E3779B97F4A7C15)
"""The increment of SplitMix64."""


class PromptWriter(Protocol):
    def write(self, prompt: Sequence[Segment]) -> list[int] | str: ...


@dataclass(frozen=True)
class IdWriter:
    """Uniformly random token ids, without special tokens."""

    ids: np.ndarray[Any, np.dtype[np.int64]]
    seed: int

    def write(self, prompt: Sequence[Segment]) -> list[int]:
        found: list[int] = self.ids[_drawn(prompt, self.seed, len(self.ids))].tolist()
        return found


@dataclass(frozen=True)
class WordWriter:
    """Words of `tokens_per_word` tokens each; the server adds `overhead` tokens itself."""

    words: np.ndarray[Any, np.dtype[np.object_]]
    seed: int
    tokens_per_word: float = 1.0
    overhead: int = 0

    def write(self, prompt: Sequence[Segment]) -> str:
        budget = max(sum(segment.num_tokens for segment in prompt) - self.overhead, 1)
        cut: list[Segment] = []
        num_tokens = num_words = 0
        for segment in prompt:
            num_tokens = min(num_tokens + segment.num_tokens, budget)
            # counted from the prompt's beginning: what is rounded off does not add up
            size = max(round(num_tokens / self.tokens_per_word), 1) - num_words
            cut.append(segment._replace(num_tokens=size))
            num_words += size
        return " " + " ".join(self.words[_drawn(cut, self.seed, len(self.words))])


def _drawn(prompt: Sequence[Segment], seed: int, num: int) -> np.ndarray[Any, np.dtype[np.int64]]:
    """A number below `num` for each token, determined by its segment and position."""
    sizes = [segment.num_tokens for segment in prompt]
    keys = np.array([_key(segment, seed) for segment in prompt], dtype=np.uint64)
    starts = np.cumsum([0, *sizes[:-1]], dtype=np.uint64)
    places = np.arange(sum(sizes), dtype=np.uint64) - np.repeat(starts, sizes)
    return (_mixed(np.repeat(keys, sizes) + places * GOLDEN) % np.uint64(num)).astype(np.int64)


def _key(segment: Segment, seed: int) -> int:
    named = f"{seed}/{segment.source:d}/{segment.key}".encode()
    return int.from_bytes(blake2b(named, digest_size=8).digest(), "little")


def _mixed(state: np.ndarray[Any, np.dtype[np.uint64]]) -> np.ndarray[Any, np.dtype[np.uint64]]:
    """SplitMix64's output function (Steele et al. 2014); sums and products wrap at 2^64."""
    state = (state ^ (state >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    state = (state ^ (state >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return state ^ (state >> np.uint64(31))


def load_tokenizer(folder: Path) -> Tokenizer:
    """Raises InvalidConfig if there is none."""
    file = folder / "tokenizer.json"
    try:
        return Tokenizer.from_file(str(file))
    except Exception as error:  # tokenizers raises nothing narrower
        raise InvalidConfig(f"--tokenizer {file}: {error}; give a model's folder") from None


def plain_ids(tokenizer: Tokenizer) -> np.ndarray[Any, np.dtype[np.int64]]:
    """All ids except added tokens, since special ones may end or split a prompt."""
    added = list(tokenizer.get_added_tokens_decoder())
    return np.setdiff1d(np.arange(tokenizer.get_vocab_size(with_added_tokens=False)), added)


def single_token_words(tokenizer: Tokenizer) -> list[str]:
    """Words that are one token each after any other word; empty if there are not enough."""
    tokens = map(tokenizer.id_to_token, plain_ids(tokenizer)[: MAX_WORDS * 8].tolist())
    candidates = [
        token[1:]
        for token in tokens
        if token and token[0] in SPACES and token[1:].isascii() and token[1:].isalpha()
    ]
    found = [word for word in dict.fromkeys(candidates) if _is_one_token(tokenizer, word)]
    return found[:MAX_WORDS] if len(found) >= MIN_WORDS else []


def _is_one_token(tokenizer: Tokenizer, word: str) -> bool:
    one = len(tokenizer.encode(f"a {word}", add_special_tokens=False).ids)
    two = len(tokenizer.encode(f"a {word} {word}", add_special_tokens=False).ids)
    return two - one == 1
