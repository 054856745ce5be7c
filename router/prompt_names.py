"""The names of a prompt's KV blocks, as each replica names them.

A name follows from a model's fingerprint, a salt and the tokens of all blocks up to its own, so
replicas whose blocks are of unequal size have no name in common.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

from baton.core.block_hash import block_hashes, root_hash
from baton.core.kv_layout import KvLayout
from baton.core.messages import GenerateRequest, Pooling

Names = tuple[bytes, ...]
"""Names of all full blocks, first to last."""


class PromptNames:
    """Names under each layout are made once, when they are first asked for."""

    def __init__(self, tokens: Sequence[int] = (), salt: bytes = b"") -> None:
        self._tokens = tokens
        self._salt = salt
        self._names_by_way: dict[tuple[bytes, int], Names] = {}

    def under(self, layout: KvLayout) -> Names:
        way = _way(layout)
        names = self._names_by_way.get(way)
        if names is None:
            root = root_hash(layout.model_fingerprint, self._salt)
            names = tuple(block_hashes(root, self._tokens, layout.block_size))
            self._names_by_way[way] = names
        return names

    def under_each(self, layouts: Iterable[KvLayout]) -> Collection[Names]:
        """The names under each layout; those of layouts that name blocks alike, once."""
        return {_way(layout): self.under(layout) for layout in layouts}.values()


def names_of(message: GenerateRequest, known: Sequence[int]) -> PromptNames:
    """The names of `known`, its prompt and output; none where every token must be run anyway."""
    if message.pooling is Pooling.MEAN or wants_prompt_logprobs(message):
        return PromptNames()
    return PromptNames(known, message.salt)


def wants_prompt_logprobs(message: GenerateRequest) -> bool:
    """They come with the first token, so a continuation needs them no more."""
    return message.sampling.num_prompt_logprobs is not None and not message.output


def _way(layout: KvLayout) -> tuple[bytes, int]:
    """Layouts that have it in common name blocks alike."""
    return layout.model_fingerprint, layout.block_size
