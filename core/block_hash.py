"""Names for the contents of KV blocks.

    h[-1] = H(model fingerprint, salt)          one root per model and tenant
    h[i]  = H(h[i-1], tokens of block i)        only full blocks have a name

Equal names mean equal tokens at equal positions under the same model and tenant, hence equal KV.
H is BLAKE2b cut to 128 bits: an accidental collision needs about 2^64 blocks, and an attacker
cannot make one to read another tenant's cache.
"""

from __future__ import annotations

import array
from collections.abc import Iterator, Sequence
from hashlib import blake2b

DIGEST_BYTES = 16


def root_hash(fingerprint: bytes, salt: bytes = b"") -> bytes:
    """The name before the first block. `salt` keeps tenants from sharing, or probing, blocks."""
    return blake2b(salt, digest_size=DIGEST_BYTES, key=blake2b(fingerprint).digest()).digest()


def extend_hash(parent: bytes, tokens: Sequence[int]) -> bytes:
    """The name of the full block that holds `tokens` and follows the block named `parent`."""
    return blake2b(parent + array.array("I", tokens).tobytes(), digest_size=DIGEST_BYTES).digest()


def block_hashes(root: bytes, tokens: Sequence[int], block_size: int) -> Iterator[bytes]:
    """The names of all full blocks of `tokens`, first to last."""
    parent = root
    for start in range(0, len(tokens) - block_size + 1, block_size):
        parent = extend_hash(parent, tokens[start : start + block_size])
        yield parent
