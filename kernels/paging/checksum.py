"""XXH3-64 checksums of units of memory: seed 0 and the default secret, as in the `xxhash` package.

For more than 240 bytes, as units of KV have:

    sums [8]                                          eight lanes of 64 bits
    for each stripe d [8] of 64 bytes, s of its block of 16:
        k = d ^ secret[8 s ..]
        sums += swap neighbours(d) + low half(k) * high half(k)
    after each full block:
        sums = (sums ^ sums >> 47 ^ secret[128 ..]) * P32_1
    checksum = avalanche(length * P64_1 + sum over pairs of fold(sums ^ secret[11 ..]))

and the last 64 bytes are one more stripe, whether or not they overlap the one before. Arithmetic is
modulo 2^64; fold(a, b) is the upper half of the 128-bit product xor its lower half.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from itertools import accumulate, pairwise

import torch
from torch import Tensor

from baton.kernels.cpu.library import library
from baton.kernels.paging import checksum_cpu as cpu
from baton.kernels.paging.checksum_cpu import Buffer as Buffer
from baton.kernels.paging.checksum_cpu import Parts as Parts

SECRET = bytes.fromhex(
    "b8fe6c3923a44bbe7c01812cf721ad1cded46de9839097db7240a4a4b7b3671f"
    "cb79e64eccc0e578825ad07dccff7221b8084674f743248ee03590e6813a264c"
    "3c2852bb91c300cb88d0658b1b532ea371644897a20df94e3819ef46a9deacd8"
    "a8fa763fe39c343ff9dcbbc7c70b4f1d8a51e04bcdb45931c89f7ec9d9787364"
    "eac5ac8334d3ebc3c581a0fffa1363eb170ddd51b7f0da49d316552629d4689e"
    "2b16be587d47a1fc8ff8b8d17ad031ce45cb3a8f95160428afd7fbcabb4b407e"
)
P32_1, P32_2, P32_3 = 0x9E3779B1, 0x85EBCA77, 0xC2B2AE3D
P64_1, P64_2, P64_3 = 0x9E3779B185EBCA87, 0xC2B2AE3D27D4EB4F, 0x165667B19E3779F9
P64_4, P64_5 = 0x85EBCA77C2B2AE63, 0x27D4EB2F165667C5
SUMS = (P32_3, P64_1, P64_2, P64_3, P64_4, P32_2, P64_5, P32_1)
"""The initial sums."""
AVALANCHE = 0x165667919E3779F9
STRIPE_BYTES, BLOCK_BYTES = 64, 1024
WORD_BYTES = 8
MIN_LONG_BYTES = 241
"""XXH3 has other rules for shorter units; only the compiled kernel implements them."""
_WORD64 = 2**64 - 1


def is_compiled() -> bool:
    """Whether this machine has the compiled functions."""
    return library() is not None


def checksums(parts: Parts, unit_bytes: int) -> bytes:
    """The checksums of the units of all parts, 8 bytes each, little-endian. Needs `is_compiled`.

    Raises ValueError if the length of a part is not a multiple of the unit's.
    """
    return cpu.checksums(parts, unit_bytes)


def copy_checksums(sources: Parts, targets: Parts, unit_bytes: int) -> bytes:
    """Copy each source to its target, in one pass over memory. Needs `is_compiled`.

    The checksums are those of the targets, since a source may be memory that another process writes
    to.
    """
    return cpu.copy_checksums(sources, targets, unit_bytes)


def device_checksums(units: Tensor) -> Tensor:
    """uint8 [U, unit bytes] -> int64 [U]: the bits of each unit's checksum, computed on its
    device."""
    if units.dtype is not torch.uint8 or units.dim() != 2 or units.shape[1] < MIN_LONG_BYTES:
        raise ValueError(f"units are uint8 [U, {MIN_LONG_BYTES} or more], not {units.shape}")
    if units.is_cuda:
        from baton.kernels.paging.checksum_gpu import checksums as on_gpu

        return on_gpu(units)
    if is_compiled():
        packed = bytearray(cpu.tensor_checksums(units.contiguous()))
        return torch.frombuffer(packed, dtype=torch.int64)
    sums = [reference(bytes(unit.tolist())) for unit in units]
    return torch.tensor([signed(each) for each in sums], dtype=torch.int64)


def can_sum_up(unit_bytes: int) -> bool:
    """Whether `device_checksums` supports units of this length, on any device."""
    return unit_bytes >= MIN_LONG_BYTES and not unit_bytes % WORD_BYTES


def row_checksums(groups: Sequence[Tensor], unit_bytes: int) -> list[bytes]:
    """The checksums of the units of each uint8 [R, bytes], contiguous, in the form of `checksums`.

    They are computed on the rows' device, on the current stream, for which this waits once.
    """
    launched = [device_checksums(rows.view(-1, unit_bytes)) for rows in groups]
    packed = memoryview(torch.cat(launched).cpu().numpy().tobytes())
    stops = list(accumulate(WORD_BYTES * len(sums) for sums in launched))
    return [bytes(packed[start:stop]) for start, stop in pairwise([0, *stops])]


def differing(actual: bytes, expected: bytes) -> list[int]:
    """The indices of the units whose checksums differ from the expected ones. Raises ValueError if
    the numbers of checksums differ."""
    if len(actual) != len(expected):
        raise ValueError(f"{len(actual)} bytes of checksums, {len(expected)} expected")
    if actual == expected:
        return []
    starts = range(0, len(actual), WORD_BYTES)
    return [
        number
        for number, start in enumerate(starts)
        if actual[start : start + WORD_BYTES] != expected[start : start + WORD_BYTES]
    ]


def signed(checksum: int) -> int:
    """The int64 with the same bits."""
    return checksum - (1 << 64) if checksum >> 63 else checksum


def reference(data: bytes) -> int:
    """The definition, for more than 240 bytes."""
    sums = list(SUMS)
    for start in range(0, len(data), BLOCK_BYTES):
        is_last = len(data) - start <= BLOCK_BYTES
        stop = len(data) - 1 if is_last else start + BLOCK_BYTES
        for number, at in enumerate(range(start, stop - STRIPE_BYTES + 1, STRIPE_BYTES)):
            _add_stripe(sums, data, at, 8 * number)
        if not is_last:
            keys = _lanes(SECRET, len(SECRET) - STRIPE_BYTES)
            pairs = zip(sums, keys, strict=True)
            sums = [(lane ^ lane >> 47 ^ key) * P32_1 & _WORD64 for lane, key in pairs]
    _add_stripe(sums, data, len(data) - STRIPE_BYTES, len(SECRET) - STRIPE_BYTES - 7)
    mixed = [lane ^ key for lane, key in zip(sums, _lanes(SECRET, 11), strict=True)]
    total = len(data) * P64_1
    for even, odd in zip(mixed[::2], mixed[1::2], strict=True):
        total += (even * odd >> 64) ^ (even * odd & _WORD64)
    total &= _WORD64
    total = (total ^ total >> 37) * AVALANCHE & _WORD64
    return total ^ total >> 32


def _add_stripe(sums: list[int], data: bytes, at: int, secret_at: int) -> None:
    lanes = _lanes(data, at)
    for lane, (value, secret) in enumerate(zip(lanes, _lanes(SECRET, secret_at), strict=True)):
        key = value ^ secret
        product = (key & 0xFFFFFFFF) * (key >> 32)
        sums[lane] = (sums[lane] + lanes[lane ^ 1] + product) & _WORD64


def _lanes(data: bytes, at: int) -> tuple[int, ...]:
    return struct.unpack_from("<8Q", data, at)
