"""The operator of source/best_token.cpp."""

from __future__ import annotations

import ctypes
import threading

import torch
from torch import Tensor

from baton.kernels.cpu.operators import Call, Entry, Pass, address_of, call, play, signature_of

NAME = "best_token_f32"
MANY_ROWS = 8
"""Rows from which on there is work enough for all threads."""
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
    """The same, for who reads it at once: no tensor is made, for which a step would wait longer
    than for the tokens."""
    num_rows, vocab_size = scores.shape
    num_parts = _num_parts(num_rows, vocab_size)
    desk = _of_thread.desk
    num_bests = num_rows * num_parts
    if desk.num_rows < num_rows or desk.num_bests < num_bests:
        most = max(desk.num_rows, num_rows), max(desk.num_bests, num_bests)
        desk = _of_thread.desk = _Desk(*most)
    desk.args.rows, desk.args.num_tokens, desk.args.num_parts = num_rows, vocab_size, num_parts
    desk.args.scores, desk.args.stride = scores.data_ptr(), scores.stride(0)
    play(desk.entries, desk.of)
    return desk.tokens[:num_rows], desk.are_finite[:num_rows]


class _Desk:
    """Memory of one thread that the operator reads its arguments from, and writes to."""

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
    def __init__(self) -> None:
        self.desk = _Desk(1, 1)


_of_thread = _OfThread()


def _num_parts(num_rows: int, vocab_size: int) -> int:
    return 1 if num_rows >= MANY_ROWS else -(-vocab_size // PART_LEN)
