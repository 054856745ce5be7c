"""The lead's orders to the other ranks, encoded as integers.

pass     1, chunks, then of each:  tokens, start, blocks, outputs, open slot; the tokens; the blocks
head     2, rows, width            the hidden states follow
stop     3
join     4                         take part in a pass of other engines
tally    5                         gather the experts' loads
move     6, layer, experts         the new expert of each slot
expect   7, tokens                 the most tokens of any engine in the next pass
tap      8, layers                 whose inputs to send to the lead, from the next pass on
decoding 9, as a pass              one token a request; later turns send only what is new
turn     10, tokens, the tokens    none: they are broadcast, from device to device
         then of each row that has grown:  row, blocks, the blocks
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from baton.engine.batch.batch import Chunk

_PASS, _HEAD, _STOP, _JOIN, _TALLY, _MOVE, _EXPECT, _TAP, _DECODING, _TURN = range(1, 11)
_FIELDS = 6


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


@dataclass(frozen=True, slots=True)
class BeginDecoding:
    """A pass of one token of each request, of which there may be more turns."""

    chunks: tuple[Chunk, ...]


@dataclass(frozen=True, slots=True)
class Turn:
    """The next turn of the decoding that was begun last."""

    tokens: tuple[int, ...]
    """One of each row; none if they are broadcast from the lead's device."""
    grown: tuple[tuple[int, tuple[int, ...]], ...]
    """Rows whose block tables have become longer, and by which blocks."""


Order = (
    Pass
    | Head
    | Stop
    | Join
    | Tally
    | MoveExperts
    | Expect
    | SendAuxHiddenStates
    | BeginDecoding
    | Turn
)


def pass_words(chunks: Sequence[Chunk]) -> array[int]:
    return _chunk_words(_PASS, chunks)


def decoding_words(chunks: Sequence[Chunk]) -> array[int]:
    return _chunk_words(_DECODING, chunks)


def turn_words(tokens: Sequence[int], grown: Sequence[tuple[int, Sequence[int]]]) -> array[int]:
    words = array("q", (_TURN, len(tokens), *tokens))
    for row, blocks in grown:
        words.extend((row, len(blocks), *blocks))
    return words


def _chunk_words(kind: int, chunks: Sequence[Chunk]) -> array[int]:
    words = array("q", (kind, len(chunks)))
    for chunk in chunks:
        num_tokens, num_blocks = len(chunk.tokens), len(chunk.blocks)
        head = (num_tokens, chunk.start, num_blocks, chunk.num_outputs)
        words.extend((*head, chunk.open_slot, chunk.adapter))
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
    read = _READERS.get(words[0])
    if read is None:
        raise ValueError(f"an order of an unknown kind: {words[0]}")
    return read(words)


def _chunks(words: Sequence[int]) -> tuple[Chunk, ...]:
    chunks, at = [], 2
    for _ in range(words[1]):
        num_tokens, start, num_blocks, num_outputs, *further = words[at : at + _FIELDS]
        tokens = at + _FIELDS
        blocks = tokens + num_tokens
        at = blocks + num_blocks
        chunks.append(Chunk(words[tokens:blocks], start, words[blocks:at], num_outputs, *further))
    if at != len(words):
        raise ValueError(f"a pass of {at} words, told in {len(words)}")
    return tuple(chunks)


def _turn(words: Sequence[int]) -> Turn:
    at = 2 + words[1]
    tokens, grown = tuple(words[2:at]), []
    while at < len(words):
        row, num_blocks = words[at : at + 2]
        blocks = at + 2
        at = blocks + num_blocks
        grown.append((row, tuple(words[blocks:at])))
    if at != len(words):
        raise ValueError(f"a turn of {at} words, told in {len(words)}")
    return Turn(tokens, tuple(grown))


_READERS: Mapping[int, Callable[[Sequence[int]], Order]] = {
    _PASS: lambda words: Pass(_chunks(words)),
    _HEAD: lambda words: Head((words[1], words[2])),
    _STOP: lambda words: Stop(),
    _JOIN: lambda words: Join(),
    _TALLY: lambda words: Tally(),
    _MOVE: lambda words: MoveExperts(words[1], tuple(words[2:])),
    _EXPECT: lambda words: Expect(words[1]),
    _TAP: lambda words: SendAuxHiddenStates(tuple(words[1:])),
    _DECODING: lambda words: BeginDecoding(_chunks(words)),
    _TURN: _turn,
}
