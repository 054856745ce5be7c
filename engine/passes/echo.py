"""A runner without a model, for tests: it detects any wrong KV.

Each token's KV cell holds what it was computed from, so that a cache can be checked on its own:

    key   = (token, position, digest, layer)      value = ~key           4 x int64 each
    digest of position p = digest of p-1 * MULTIPLIER + token + 1        mod 2^64

The next token is a function of the last digest, and so of all tokens of the context as the cache
holds them. B = blocks of all contexts, S = tokens per block, T = tokens of this pass, L = layers.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import chain

import torch
from torch import Tensor

from baton.core.kv_layout import DraftFeatures
from baton.engine.batch.batch import Chunk, OnLayer, ignore_layer
from baton.engine.memory.kv_cache import KvCache
from baton.engine.models.config.info import ModelInfo
from baton.kernels.sampling.draw_token import Draws

MULTIPLIER = 6364136223846793005  # Knuth, MMIX
_MIXER = 0xBF58476D1CE4E5B9  # Steele et al. 2014, SplitMix64
_MASK = 2**64 - 1
_CELL = 4  # int64 of a key, and of a value
_PEAK = 100.0  # logit of the next token: others are drawn with a probability of about e^-100


def echo_info(
    *,
    vocab_size: int = 256,
    max_model_len: int = 32768,
    eos_token_ids: tuple[int, ...] = (),
    num_layers: int = 1,
) -> ModelInfo:
    """The `ModelInfo` of an echo "model"."""
    return ModelInfo(
        architecture="Echo",
        vocab_size=vocab_size,
        max_model_len=max_model_len,
        eos_token_ids=eos_token_ids,
        dtype="float32",
        fingerprint=f"echo {vocab_size} {num_layers}".encode(),
        num_layers=num_layers,
        num_kv_heads=1,
        head_dim=2 * _CELL,
    )


def echo_output(tokens: Iterable[int], num_tokens: int, vocab_size: int) -> list[int]:
    """The output that an engine with an `EchoRunner` must give for `tokens` with greedy
    sampling."""
    digest = 0
    for token in tokens:
        digest = _extend(digest, token)
    output: list[int] = []
    for _ in range(num_tokens):
        output.append(_next_token(digest, vocab_size))
        digest = _extend(digest, output[-1])
    return output


class EchoRunner:
    """A `baton.engine.passes.runner.Runner` on CPU.

    With `is_verifying` every pass reads the KV of all contexts and raises RuntimeError if a cell is
    wrong; without it, only the cell before each chunk is read.
    """

    def __init__(
        self,
        info: ModelInfo,
        *,
        num_blocks: int,
        block_size: int = 16,
        is_verifying: bool = True,
        features: DraftFeatures | None = None,
    ) -> None:
        """`features`: adds a plane of draft features to the cache; the runner does not fill it."""
        self.info = info
        self.cache = KvCache(replace(info.layout(block_size), features=features), num_blocks)
        self.is_verifying = is_verifying
        self._arenas = [  # [blocks, 2, S, 4]
            arena.view(torch.int64).squeeze(1) for arena in self.cache.planes[: info.num_layers]
        ]

    def forward(self, chunks: Sequence[Chunk], on_layer: OnLayer = ignore_layer) -> Tensor:
        if self.is_verifying:
            self._verify([chunk for chunk in chunks if chunk.start])
        cells, slots, outputs = array("Q"), array("q"), array("Q")
        block_size = self.cache.layout.block_size
        for chunk, digest in zip(chunks, self._digests_before(chunks), strict=True):
            first_output = chunk.start + len(chunk.tokens) - chunk.num_outputs
            for position, token in enumerate(chunk.tokens, chunk.start):
                digest = _extend(digest, token)
                if position >= first_output:
                    outputs.append(digest)
                cells.extend((token, position, digest, 0))
                index, offset = divmod(position, block_size)
                slots.append(chunk.blocks[index] * block_size + offset)
        self._write(_tensor(cells).view(-1, _CELL), _tensor(slots), on_layer)
        return _tensor(outputs).view(-1, 1)

    def logits(self, hidden: Tensor) -> Tensor:
        """Logits [S, V] that make the next token certain. `hidden` [S, 1] is the digest after each
        token, from which the next one follows."""
        next_tokens = [
            _next_token(digest & _MASK, self.info.vocab_size) for (digest,) in hidden.tolist()
        ]
        logits = torch.zeros(len(next_tokens), self.info.vocab_size)
        return logits.scatter_(1, torch.tensor(next_tokens).view(-1, 1), _PEAK)

    def screened_tokens(self, hidden: Tensor, draws: Draws | None = None) -> None:
        """Nothing: logits are quicker."""

    def _digests_before(self, chunks: Sequence[Chunk]) -> list[int]:
        """The digest of the token before each chunk, from the cache; 0 before the first token."""
        last = [max(chunk.start - 1, 0) for chunk in chunks]
        block_size = self.cache.layout.block_size
        blocks = [chunk.blocks[at // block_size] for chunk, at in zip(chunks, last, strict=True)]
        offsets = [at % block_size for at in last]
        digests: list[int] = self._arenas[0][blocks, 0, offsets, 2].tolist()
        return [
            digest & _MASK if chunk.start else 0
            for chunk, digest in zip(chunks, digests, strict=True)
        ]

    def _write(self, keys: Tensor, slots: Tensor, on_layer: OnLayer) -> None:
        """Store `keys` [T, 4] and their values at `slots` [T] of every layer."""
        block_size = self.cache.layout.block_size
        blocks, offsets = slots // block_size, slots % block_size
        for layer, arena in enumerate(self._arenas):
            keys[:, 3] = layer
            arena[blocks, 0, offsets] = keys
            arena[blocks, 1, offsets] = ~keys
            on_layer(layer)

    def _verify(self, chunks: Sequence[Chunk]) -> None:
        if not chunks:
            return
        layout = self.cache.layout
        tables = [chunk.blocks[: layout.num_blocks_for(chunk.start)] for chunk in chunks]
        lens = [len(table) * layout.block_size for table in tables]
        blocks = torch.tensor(list(chain.from_iterable(tables)))  # [B]
        positions = torch.cat([torch.arange(length) for length in lens])  # [B * S]
        starts = torch.tensor([chunk.start for chunk in chunks])
        is_past = positions < starts.repeat_interleave(torch.tensor(lens))
        cells = torch.stack([arena[blocks] for arena in self._arenas])  # [L, B, 2, S, 4]
        keys, values = cells[:, :, 0].flatten(1, 2), cells[:, :, 1].flatten(1, 2)  # [L, B * S, 4]
        token, at, digest, layer = keys.unbind(-1)
        before = digest.roll(1, 1).masked_fill(positions == 0, 0)
        is_right = (at == positions) & (digest == before * MULTIPLIER + token + 1)
        is_right &= (layer == torch.arange(len(keys)).unsqueeze(1)) & (values == ~keys).all(-1)
        wrong = (is_past & ~is_right).nonzero().tolist()
        if wrong:
            first = wrong[0][0]
            where = [int(positions[row]) for layer, row in wrong if layer == first]
            raise RuntimeError(f"wrong KV in layer {first} at positions {where}")


def _extend(digest: int, token: int) -> int:
    return (digest * MULTIPLIER + token + 1) & _MASK


def _next_token(digest: int, vocab_size: int) -> int:
    mixed = ((digest ^ digest >> 31) * _MIXER) & _MASK  # the last token is only in the low bits
    return (mixed >> 33) % vocab_size


def _tensor(values: array[int]) -> Tensor:
    if not values:
        return torch.empty(0, dtype=torch.int64)
    return torch.frombuffer(values, dtype=torch.int64)
