"""The operator of source/sampling/best_token.cpp."""

from __future__ import annotations

import ctypes
import threading

import torch
from torch import Tensor

from baton.kernels.cpu.operators import Call, Entry, Pass, address_of, call, play, signature_of

NAME = "best_token_f32"
MANY_ROWS = 8
"""Number of rows from which on there is enough work for all threads."""
PART_LEN = 16384
BYTES_OF_BEST = 16


def best_token(scores: Tensor) -> tuple[Tensor, Tensor]:
    """[S, V] -> tokens [S] int64, whether all of a row is finite [S] bool."""
    num_rows, vocab_size = scores.shape
    num_parts = _num_parts(num_rows, vocab_size)
    tokens = torch.empty(num_rows, dtype=torch.int64)
    are_finite = torch.empty(num_rows, dtype=torch.bool)
    parts = torch.empty(num_rows, num_parts * BYTES_OF_BEST, dtype=torch.uint8)
    call(
        Call(
            NAME,
            rows=num_rows,
            inputs={
                "scores": scores,
                "num_tokens": vocab_size,
                "stride": scores.stride(0),
                "num_parts": num_parts,
            },
            outputs={"tokens": tokens, "are_finite": are_finite, "bests": parts},
        )
    )
    return tokens, are_finite


def best_token_on_host(scores: Tensor) -> tuple[list[int], list[bool]]:
    """The same for a caller that reads the result at once. No tensors are made, as creating them
    takes longer than finding the tokens."""
    num_rows, vocab_size = scores.shape
    num_parts = _num_parts(num_rows, vocab_size)
    num_bests = num_rows * num_parts
    buffers = _of_thread.buffers
    if buffers is None:
        buffers = _of_thread.buffers = _Buffers(num_rows, num_bests)
    elif buffers.num_rows < num_rows or buffers.num_bests < num_bests:
        most = max(buffers.num_rows, num_rows), max(buffers.num_bests, num_bests)
        buffers = _of_thread.buffers = _Buffers(*most)
    args = buffers.args
    args.rows, args.num_tokens, args.num_parts = num_rows, vocab_size, num_parts
    args.scores, args.stride = scores.data_ptr(), scores.stride(0)
    play(buffers.entries, buffers.of)
    return buffers.tokens[:num_rows], buffers.are_finite[:num_rows]


class _Buffers:
    """Memory of one thread for the operator's arguments and results."""

    def __init__(self, num_rows: int, num_bests: int) -> None:
        self.num_rows, self.num_bests = num_rows, num_bests
        self.tokens = (ctypes.c_int64 * num_rows)()
        self.are_finite = (ctypes.c_bool * num_rows)()
        self._bests = (ctypes.c_int64 * (num_bests * BYTES_OF_BEST // 8))()
        self.args = signature_of(NAME).args(
            tokens=ctypes.addressof(self.tokens),
            are_finite=ctypes.addressof(self.are_finite),
            bests=ctypes.addressof(self._bests),
        )
        self.entries = (Entry * 1)(Entry(address_of(NAME), ctypes.addressof(self.args), 0))
        self.of = Pass()


class _OfThread(threading.local):
    buffers: _Buffers | None = None
    """Created by the first call, as compiled operators may be missing at import."""


_of_thread = _OfThread()


def _num_parts(num_rows: int, vocab_size: int) -> int:
    return 1 if num_rows >= MANY_ROWS else -(-vocab_size // PART_LEN)
