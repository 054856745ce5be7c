"""The names of a prompt's KV blocks, for each way in which replicas name them.

A name follows from a model's fingerprint, a salt and the tokens of all blocks up to its own, so
replicas with different block sizes have no name in common.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import TypeAlias

from baton.core.block_hash import BlockNames, root_hash
from baton.core.ids import Epoch
from baton.core.kv_layout import KvLayout
from baton.core.messages import GenerateRequest, Pooling
from baton.kernels.names.block_names import block_names

WayToName: TypeAlias = tuple[bytes, int]
"""Layouts that have the model's fingerprint and the block size in common name blocks alike."""

STRETCH = 8192
"""Tokens that are named in one go: 50 µs, or a millisecond where nothing is compiled."""


NO_NAMES = BlockNames()


class PromptNames:
    """Names under each layout are made once, when they are first asked for."""

    def __init__(self, tokens: Sequence[int] = (), salt: bytes = b"") -> None:
        self._tokens = tokens
        self._salt = salt
        self._names_by_way: dict[WayToName, BlockNames] = {}
        """Names of all full blocks of the prompt."""
        self._first_by_way: dict[WayToName, BlockNames] = {}
        """Names of the first blocks, as they were made for a shorter prompt."""
        self.matched: dict[Epoch, tuple[tuple[int, int], int]] = {}
        """Number of the prompt's leading tokens that a replica has, for a version of its cache
        (`matches.py`)."""

    def under(self, layout: KvLayout) -> BlockNames:
        """The names of all full blocks."""
        return self.named(way_to_name(layout))

    def by_each(self, ways: Iterable[WayToName]) -> Collection[BlockNames]:
        """The names by each way that differs from those before it, if there are any."""
        return [names for way in dict.fromkeys(ways) if (names := self.named(way))]

    def make(self, layouts: Iterable[KvLayout]) -> Iterator[None]:
        """Make the names under each layout, yielding between stretches of tokens."""
        for way in dict.fromkeys(map(way_to_name, layouts)):
            if way not in self._names_by_way:
                yield from self._make(way)

    def followed_by(self, output: Sequence[int]) -> PromptNames:
        """The names of these tokens and of `output` behind them. What is made is not made again."""
        if not output:
            return self
        longer = PromptNames((*self._tokens, *output), self._salt)
        longer._first_by_way = {**self._first_by_way, **self._names_by_way}
        return longer

    def named(self, way: WayToName) -> BlockNames:
        """The names of all full blocks, by one way to name them."""
        made = self._names_by_way.get(way)
        if made is None:
            for _ in self._make(way):
                pass
            made = self._names_by_way[way]
        return made

    def _make(self, way: WayToName) -> Iterator[None]:
        fingerprint, size = way
        known = self._first_by_way.get(way, NO_NAMES)
        parent = known[-1] if known else root_hash(fingerprint, self._salt)
        if not known and len(self._tokens) <= STRETCH:
            self._names_by_way[way] = block_names(parent, self._tokens, size)
            return
        made = [known.packed]
        step = max(1, STRETCH // size) * size
        first = len(known) * size
        for start in range(first, len(self._tokens) - size + 1, step):
            if start > first:
                yield
            names = block_names(parent, self._tokens, size, start, start + step)
            made.append(names.packed)
            parent = names[-1]
        self._names_by_way[way] = BlockNames(b"".join(made))


def names_of(message: GenerateRequest, prompt: PromptNames) -> PromptNames:
    """The names of its prompt and output; none where every token must be run anyway."""
    if message.pooling is Pooling.MEAN or wants_prompt_logprobs(message):
        return PromptNames()
    return prompt.followed_by(message.output)


def wants_prompt_logprobs(message: GenerateRequest) -> bool:
    """They come with the first token, so a continuation needs them no more."""
    return message.sampling.num_prompt_logprobs is not None and not message.output


def way_to_name(layout: KvLayout) -> WayToName:
    return layout.model_fingerprint, layout.block_size
