"""Lets all ranks of an engine try something, and agree on whether all succeeded.

    rank 0      launches its share     | exchange | waits for the device
    rank 1      has no memory for it   | outcomes | raises                  as rank 0 then does, too

A pass has all-reduces, in which a device waits for all others. If one rank fails to launch, the
others would wait until NCCL's timeout, so ranks exchange their outcomes between hosts before any of
them waits for its device.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta

import torch

from baton.engine.mesh.ranks import RankGroup, Ranks

WITHIN = timedelta(minutes=10)
"""The longest wait for another rank, which may compile kernels; equals NCCL's timeout. A rank that
has ended is noticed at once."""
FAILED_WITHIN = timedelta(minutes=1)
"""The longest wait of a failed rank. Others may never answer, since a waiting device blocks its
host after many launches."""
REASON_BYTES = 496
"""The most bytes of a reason."""
COULD, NO_MEMORY, FAILED = range(3)


class RanksApart(RuntimeError):
    """A rank is gone or did not report: the others cannot continue."""


@contextmanager
def collective_attempt(ranks: Ranks) -> Iterator[None]:
    """Context for what each rank tries. If one fails, all raise: RuntimeError with the reasons, or
    torch.OutOfMemoryError if that was the only cause. The body must not wait for a device with
    pending all-reduces. A single rank raises its own error. Raises RanksApart if the outcomes
    cannot be exchanged.
    """
    if not isinstance(ranks, RankGroup):
        yield
        return
    own: Exception | None = None
    try:
        yield
    except Exception as error:  # any error must be reported to the others
        own = error
    kinds, reasons = _exchange_outcomes(ranks, own)
    if reasons:
        is_memory = FAILED not in kinds
        raise (torch.OutOfMemoryError if is_memory else RuntimeError)("; ".join(reasons)) from own


def gather_numbers(ranks: Ranks, number: int) -> list[int]:
    """The numbers of all ranks, in order. Raises RanksApart if one is missing."""
    if not isinstance(ranks, RankGroup):
        return [number]
    try:
        return [said for (said,) in ranks.gather(array("q", (int(number),)), WITHIN)]
    except RuntimeError as gone:
        raise RanksApart(f"another rank is gone, or hangs: {gone}") from gone


def _exchange_outcomes(ranks: RankGroup, own: Exception | None) -> tuple[list[int], list[str]]:
    """Each rank's outcome, and the reasons of failed ones."""
    try:
        found = ranks.gather(_words(own), WITHIN if own is None else FAILED_WITHIN)
    except RuntimeError as gone:
        reason = "another rank is gone, or hangs" if own is None else f"{own}; no other rank knows"
        raise RanksApart(f"{reason}: {gone}") from own or gone
    kinds = [kind for kind, *_ in found]
    reasons = [
        f"rank {rank}: {_text(words)}" for rank, (kind, *words) in enumerate(found) if kind != COULD
    ]
    return kinds, reasons


def _words(error: Exception | None) -> array[int]:
    kind = COULD
    if error is not None:
        kind = NO_MEMORY if isinstance(error, torch.OutOfMemoryError) else FAILED
    text = "" if error is None else str(error) or type(error).__name__
    words = array("q", (kind,))
    words.frombytes(text.encode()[:REASON_BYTES].ljust(REASON_BYTES, b"\0"))
    return words


def _text(words: list[int]) -> str:
    return array("q", words).tobytes().rstrip(b"\0").decode(errors="ignore")
