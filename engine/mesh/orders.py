"""The lead's orders to the other ranks, encoded as integers.

pass     1, chunks, then of each:  tokens, start, blocks, outputs, lane,  the tokens, the blocks
head     2, rows, width            the hidden states follow
stop     3
join     4                         take part in a pass of other engines
tally    5                         gather the experts' loads
move     6, layer, experts         the new expert of each slot
expect   7, tokens                 the most tokens of any engine in the next pass
tap      8, layers                 whose inputs to send to the lead, from the next pass on
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass

from baton.engine.batch.batch import Chunk

_PASS, _HEAD, _STOP, _JOIN, _TALLY, _MOVE, _EXPECT, _TAP = range(1, 9)
_FIELDS = 5


@dataclass(frozen=True, slots=True)
class Pass:
    chunks: tuple[Chunk, ...]


@dataclass(frozen=True, slots=True)
class Head:
    """Logits of hidden states, which the lead sends."""

    shape: tuple[int, int]


@dataclass(frozen=True, slots=True)
class Stop:
    """The last order."""


@dataclass(frozen=True, slots=True)
class Join:
    """Compute experts for a pass of other engines."""


@dataclass(frozen=True, slots=True)
class Tally:
    """Gather the loads of experts."""


@dataclass(frozen=True, slots=True)
class MoveExperts:
    """Move the experts of one layer to other slots: see `expert_moves.py`."""

    layer: int
    experts: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Expect:
    """No engine has more tokens in the pass that follows."""

    max_tokens: int


@dataclass(frozen=True, slots=True)
class SendAuxHiddenStates:
    """Send the inputs of these layers to the lead, from the next pass on; empty: stop."""

    layers: tuple[int, ...]


Order = Pass | Head | Stop | Join | Tally | MoveExperts | Expect | SendAuxHiddenStates


def pass_words(chunks: Sequence[Chunk]) -> array[int]:
    words = array("q", (_PASS, len(chunks)))
    for chunk in chunks:
        num_tokens, num_blocks = len(chunk.tokens), len(chunk.blocks)
        words.extend((num_tokens, chunk.start, num_blocks, chunk.num_outputs, chunk.lane))
        words.extend(chunk.tokens)
        words.extend(chunk.blocks)
    return words


def head_words(shape: Sequence[int]) -> array[int]:
    return array("q", (_HEAD, *shape))


def stop_words() -> array[int]:
    return array("q", (_STOP,))


def expect_words(max_tokens: int) -> array[int]:
    return array("q", (_EXPECT, max_tokens))


def join_words() -> array[int]:
    return array("q", (_JOIN,))


def tally_words() -> array[int]:
    return array("q", (_TALLY,))


def move_words(layer: int, experts: Sequence[int]) -> array[int]:
    return array("q", (_MOVE, layer, *experts))


def tap_words(layers: Sequence[int]) -> array[int]:
    return array("q", (_TAP, *layers))


def read_order(words: Sequence[int]) -> Order:
    """Decode an order. Raises ValueError if invalid."""
    match words[0]:
        case kind if kind == _PASS:
            return Pass(_chunks(words))
        case kind if kind == _HEAD:
            return Head((words[1], words[2]))
        case kind if kind == _STOP:
            return Stop()
        case kind if kind == _JOIN:
            return Join()
        case kind if kind == _EXPECT:
            return Expect(words[1])
        case kind if kind == _TALLY:
            return Tally()
        case kind if kind == _TAP:
            return SendAuxHiddenStates(tuple(words[1:]))
        case kind if kind == _MOVE:
            return MoveExperts(words[1], tuple(words[2:]))
        case kind:
            raise ValueError(f"an order of an unknown kind: {kind}")


def _chunks(words: Sequence[int]) -> tuple[Chunk, ...]:
    chunks, at = [], 2
    for _ in range(words[1]):
        num_tokens, start, num_blocks, num_outputs, lane = words[at : at + _FIELDS]
        tokens = at + _FIELDS
        blocks = tokens + num_tokens
        at = blocks + num_blocks
        chunks.append(Chunk(words[tokens:blocks], start, words[blocks:at], num_outputs, lane))
    if at != len(words):
        raise ValueError(f"a pass of {at} words, told in {len(words)}")
    return tuple(chunks)
