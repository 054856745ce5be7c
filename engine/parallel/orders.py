"""What the lead tells the other ranks to do, as numbers.

pass     1, chunks, then of each:  tokens, start, blocks, outputs,  the tokens, the blocks
head     2, rows, width            the hidden states follow
stop     3
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass

from baton.engine.batch import Chunk

_PASS, _HEAD, _STOP = 1, 2, 3
_FIELDS = 4


@dataclass(frozen=True, slots=True)
class Pass:
    chunks: tuple[Chunk, ...]


@dataclass(frozen=True, slots=True)
class Head:
    """Logits of hidden states, which the lead sends."""

    shape: tuple[int, int]


@dataclass(frozen=True, slots=True)
class Stop:
    """There will be no more."""


Order = Pass | Head | Stop


def pass_words(chunks: Sequence[Chunk]) -> array[int]:
    words = array("q", (_PASS, len(chunks)))
    for chunk in chunks:
        words.extend((len(chunk.tokens), chunk.start, len(chunk.blocks), chunk.num_outputs))
        words.extend(chunk.tokens)
        words.extend(chunk.blocks)
    return words


def head_words(shape: Sequence[int]) -> array[int]:
    return array("q", (_HEAD, *shape))


def stop_words() -> array[int]:
    return array("q", (_STOP,))


def read_order(words: Sequence[int]) -> Order:
    """Raises ValueError for words that are no order."""
    match words[0]:
        case kind if kind == _PASS:
            return Pass(_chunks(words))
        case kind if kind == _HEAD:
            return Head((words[1], words[2]))
        case kind if kind == _STOP:
            return Stop()
        case kind:
            raise ValueError(f"an order of an unknown kind: {kind}")


def _chunks(words: Sequence[int]) -> tuple[Chunk, ...]:
    chunks, at = [], 2
    for _ in range(words[1]):
        num_tokens, start, num_blocks, num_outputs = words[at : at + _FIELDS]
        tokens = at + _FIELDS
        blocks = tokens + num_tokens
        at = blocks + num_blocks
        chunks.append(Chunk(words[tokens:blocks], start, words[blocks:at], num_outputs))
    return tuple(chunks)
