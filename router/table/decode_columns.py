"""Reports of decode replicas about their work and steps, as columns: one row per replica of a pool.

    numbers   [DecodeFact, row]      written whenever a replica reports something new (`pool.py`)

A replica that has not measured its own steps yet counts as fast as the mean of those that have: its
columns are NaN, and `usual` has the values to use instead.
"""

from __future__ import annotations

import math
from enum import IntEnum, auto
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from baton.core.replicas import Capacity
from baton.kernels.routing.cost_terms_cpu import Rows

ENOUGH_STEPS = 16
"""Measured steps that decoded: a fit over fewer says little of the next."""


class DecodeFact(IntEnum):
    """Seconds are of its own steps, times by how much they are slower of late."""

    NUM_REQUESTS = 0
    """Requests that run there or are about to, from all gateways."""
    NUM_SINCE = auto()
    """Requests that this gateway sent since the replica's last word; counted in NUM_REQUESTS."""
    CONTEXT_TOKENS = auto()
    CONSTANT_S = auto()
    REQUEST_S = auto()
    """Seconds of one request more in a step, with the token that it computes."""
    CONTEXT_S = auto()
    FREE_TOKENS = auto()
    """Tokens that its free blocks hold."""
    USED_TOKENS = auto()
    RECEIVED_AT_S = auto()
    """When it spoke last, if it said that it has something to do; infinite: it need not speak."""


class UsualStep(NamedTuple):
    """The mean over those that have measured their own."""

    constant_s: float
    request_s: float
    context_s: float


UNMEASURED = (math.nan, math.nan, math.nan)
"""Step times of a replica that has not measured enough; one tuple, so it equals itself."""


class DecodeColumns:
    def __init__(self) -> None:
        self._numbers: NDArray[np.float64] = np.zeros((len(DecodeFact), 0))
        self._rows = Rows(self._numbers.ctypes.data, 0, 0)
        self._steps: list[tuple[float, float, float]] = []
        """The result of `_step_s` for each row when it was written."""
        self._usual: UsualStep | None = None
        self._is_usual_known = False

    @property
    def numbers(self) -> NDArray[np.float64]:
        return self._numbers

    @property
    def rows(self) -> Rows:
        """The memory of the numbers."""
        return self._rows

    def add(self) -> None:
        """A row more."""
        self._lay(np.concatenate((self._numbers, np.zeros((len(self._numbers), 1))), axis=1))
        self._steps.append(UNMEASURED)

    def remove(self, row: int) -> None:
        self._lay(np.delete(self._numbers, row, axis=1))
        del self._steps[row]

    def _lay(self, numbers: NDArray[np.float64]) -> None:
        num = numbers.shape[1]
        self._numbers, self._rows = numbers, Rows(numbers.ctypes.data, num, num)
        self._is_usual_known = False

    def write(
        self,
        row: int,
        capacity: Capacity | None,
        received_at_s: float | None,
        *,
        num_requests: int,
        num_since: int,
        block_size: int,
    ) -> None:
        step_s = _step_s(capacity)
        is_awaited = capacity is not None and not capacity.is_at_rest and received_at_s is not None
        free, used = math.inf, 1.0
        if capacity is not None and capacity.num_blocks:
            free = float(capacity.num_free_blocks * block_size)
            used = float(max(capacity.num_blocks - capacity.num_free_blocks, 1) * block_size)
        context = 0 if capacity is None else capacity.num_context_tokens
        received_s = received_at_s if is_awaited and received_at_s is not None else math.inf
        if self._steps[row] != step_s:
            self._steps[row] = step_s
            self._is_usual_known = False
        self._numbers[:, row] = (
            *(num_requests, num_since, context),
            *step_s,
            *(free, used, received_s),
        )

    @property
    def usual(self) -> UsualStep | None:
        """None if no replica has measured its steps."""
        if not self._is_usual_known:
            steps = self._numbers[DecodeFact.CONSTANT_S : DecodeFact.CONTEXT_S + 1]
            measured = steps[:, ~np.isnan(steps[0])]
            self._usual = UsualStep(*measured.mean(axis=1).tolist()) if measured.size else None
            self._is_usual_known = True
        return self._usual


def _step_s(capacity: Capacity | None) -> tuple[float, float, float]:
    """The values of `DecodeFact` from CONSTANT_S on; NaN if too little was measured."""
    times = None if capacity is None else capacity.step_times
    if capacity is None or times is None or times.num_decode_steps < ENOUGH_STEPS:
        return UNMEASURED
    slowness = max(capacity.slowness, 1.0)
    steps = times.constant_s, times.token_s + times.request_s, times.context_s
    return (steps[0] * slowness, steps[1] * slowness, steps[2] * slowness)
