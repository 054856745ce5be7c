"""Philox4x32-10: random numbers as a function of a counter (Salmon et al. 2011).

Ten rounds turn a counter of four 32-bit words c under a key of two, k, into four random words.
With (hi, lo) the halves of a 64-bit product, a round is

    hi0, lo0 = M0 * c0      hi1, lo1 = M1 * c2
    c = (hi1 ^ c1 ^ k0,  lo1,  hi0 ^ c3 ^ k1,  lo0)      then  k += (W0, W1)

There is no state: any element can be computed anywhere, in any order, with the same result.
"""

from __future__ import annotations

from torch import Tensor

ROUNDS = 10
M0, M1 = 0xD2511F53, 0xCD9E8D57
W0, W1 = 0x9E3779B9, 0xBB67AE85
WORD = 0xFFFFFFFF

Words4 = tuple[Tensor, Tensor, Tensor, Tensor]


def philox(counter: Words4, key: tuple[Tensor, Tensor]) -> Words4:
    """Words are int64 tensors of values below 2^32; their shapes broadcast."""
    c0, c1, c2, c3 = counter
    k0, k1 = key
    for _ in range(ROUNDS):
        # A product may wrap to a negative int64; its bits are those of the unsigned product.
        product0, product1 = c0 * M0, c2 * M1
        c0 = (product1 >> 32).bitwise_and_(WORD).bitwise_xor(c1).bitwise_xor_(k0)
        c2 = (product0 >> 32).bitwise_and_(WORD).bitwise_xor(c3).bitwise_xor_(k1)
        c1, c3 = product1.bitwise_and_(WORD), product0.bitwise_and_(WORD)
        k0, k1 = (k0 + W0) & WORD, (k1 + W1) & WORD
    return c0, c1, c2, c3


def reference(
    counter: tuple[int, int, int, int], key: tuple[int, int]
) -> tuple[int, int, int, int]:
    """The definition, for one counter."""
    c0, c1, c2, c3 = counter
    k0, k1 = key
    for _ in range(ROUNDS):
        hi0, lo0 = divmod(M0 * c0, 1 << 32)
        hi1, lo1 = divmod(M1 * c2, 1 << 32)
        c0, c1, c2, c3 = hi1 ^ c1 ^ k0, lo1, hi0 ^ c3 ^ k1, lo0
        k0, k1 = (k0 + W0) & WORD, (k1 + W1) & WORD
    return c0, c1, c2, c3
