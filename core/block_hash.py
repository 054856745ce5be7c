"""Names for the contents of KV blocks.

    h[-1] = H(model fingerprint, salt)          one root per model and tenant
    h[i]  = H(tokens of block i, h[i-1])        only full blocks have a name

Equal names mean equal tokens at equal positions under the same model and tenant, hence equal KV.
H is SHA-256 cut to 128 bits, keyed BLAKE2b for the root: an accidental collision needs about 2^64
blocks, and an attacker cannot make one to read another tenant's cache. SHA-256 is what CPUs have
instructions for; the tokens come first, so that all but the end of a block's message is computed
before the name of the block before it is known.
"""

from __future__ import annotations

import array
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from hashlib import blake2b, sha256
from itertools import chain
from struct import Struct
from typing import overload

DIGEST_BYTES = 16
_NAME = Struct(f"{DIGEST_BYTES}s")
_MANY_NAMES = Struct(64 * f"{DIGEST_BYTES}s")
"""Taken apart in one go, at a third of the time."""


@dataclass(frozen=True, slots=True)
class BlockNames(Sequence[bytes]):
    """Names kept end to end: a long prompt has thousands, of which none need be an object."""

    packed: bytes = b""

    @classmethod
    def of(cls, names: Iterable[bytes]) -> BlockNames:
        return names if isinstance(names, cls) else cls(b"".join(names))

    def __len__(self) -> int:
        return len(self.packed) // DIGEST_BYTES

    @overload
    def __getitem__(self, index: int) -> bytes: ...
    @overload
    def __getitem__(self, index: slice) -> BlockNames: ...
    def __getitem__(self, index: int | slice) -> bytes | BlockNames:
        if isinstance(index, int):
            start = index * DIGEST_BYTES if index >= 0 else index * DIGEST_BYTES + len(self.packed)
            name = self.packed[start : start + DIGEST_BYTES] if start >= 0 else b""
            if not name:
                raise IndexError(f"{index} of {len(self)} names")
            return name
        start, stop, step = index.indices(len(self))
        if step != 1:
            return BlockNames.of([self[each] for each in range(start, stop, step)])
        return BlockNames(self.packed[start * DIGEST_BYTES : stop * DIGEST_BYTES])

    def __iter__(self) -> Iterator[bytes]:
        packed = memoryview(self.packed)
        end = len(packed) - len(packed) % _MANY_NAMES.size
        many, few = _MANY_NAMES.iter_unpack(packed[:end]), _NAME.iter_unpack(packed[end:])
        return chain.from_iterable(chain(many, few))

    def num_common(self, other: BlockNames, start: int = 0) -> int:
        """How many leading names both have, `other` from `start` on. They are chained: equal at
        one depth means before."""
        ours, theirs, offset = self.packed, other.packed, start * DIGEST_BYTES
        if theirs.startswith(ours, offset):
            return len(self)
        least, most = 0, min(len(self), len(other) - start)
        if ours.startswith(theirs[offset:]):
            return most
        while least < most:
            middle = (least + most + 1) // 2
            end = middle * DIGEST_BYTES
            name = ours[end - DIGEST_BYTES : end]
            if theirs.startswith(name, offset + end - DIGEST_BYTES):
                least = middle
            else:
                most = middle - 1
        return least


@lru_cache(maxsize=1024)
def root_hash(fingerprint: bytes, salt: bytes = b"") -> bytes:
    """The name before the first block. `salt` keeps tenants from sharing, or probing, blocks."""
    return blake2b(salt, digest_size=DIGEST_BYTES, key=blake2b(fingerprint).digest()).digest()


def extend_hash(parent: bytes, tokens: Sequence[int]) -> bytes:
    """The name of the full block that holds `tokens` and follows the block named `parent`."""
    return sha256(array.array("I", tokens).tobytes() + parent).digest()[:DIGEST_BYTES]


def block_hashes(root: bytes, tokens: Sequence[int], block_size: int) -> Iterator[bytes]:
    """The names of all full blocks of `tokens`, first to last.

    The definition; `baton.kernels.names.block_names` makes the same ones, many at a time.
    """
    parent = root
    for start in range(0, len(tokens) - block_size + 1, block_size):
        parent = extend_hash(parent, tokens[start : start + block_size])
        yield parent
