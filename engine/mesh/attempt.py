"""What all ranks of an engine try at once, and whether each of them could.

    rank 0      launches its share     | tell | waits for the device
    rank 1      has no memory for it   | tell | raises                      as rank 0 then does, too

A pass has sums in it, in which a device waits for all others. What one rank did not launch the rest
would wait for until NCCL gives up: so they tell each other, from host to host, before any of them
waits for its device.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta

import torch

from baton.engine.mesh.ranks import RankGroup, Ranks

WITHIN = timedelta(minutes=10)
"""How long one rank may take longer than another: the first to come compiles kernels. It is as long
as NCCL waits; a rank that has ended is noticed at once."""
FAILED_WITHIN = timedelta(minutes=1)
"""The same for a rank that failed. Others may never come to say how they fared: a device that waits
takes only so many launches before the host waits, too."""
REASON_BYTES = 496
"""Bytes of a reason that are told."""
COULD, NO_MEMORY, FAILED = range(3)


class RanksApart(RuntimeError):
    """A rank is gone, or did not say how it fared: the others cannot go on with it."""


@contextmanager
def tried_by_all(ranks: Ranks) -> Iterator[None]:
    """Around what each rank tries. If one cannot, all raise: RuntimeError with the reasons, or
    torch.OutOfMemoryError if memory is all that was missing. Nothing inside may wait for the
    device where ranks add up on it. A rank that is alone raises what it met.

    Raises RanksApart if they do not come to know of each other.
    """
    if not isinstance(ranks, RankGroup):
        yield
        return
    own: Exception | None = None
    try:
        yield
    except Exception as error:  # whatever it is, the others have to know
        own = error
    kinds, reasons = _told(ranks, own)
    if reasons:
        is_memory = FAILED not in kinds
        raise (torch.OutOfMemoryError if is_memory else RuntimeError)("; ".join(reasons)) from own


def said_by_all(ranks: Ranks, number: int) -> list[int]:
    """What each rank says, in order; all of them have to. Raises RanksApart if one does not."""
    if not isinstance(ranks, RankGroup):
        return [number]
    try:
        return [said for (said,) in ranks.gather(array("q", (int(number),)), WITHIN)]
    except RuntimeError as gone:
        raise RanksApart(f"another rank is gone, or hangs: {gone}") from gone


def _told(ranks: RankGroup, own: Exception | None) -> tuple[list[int], list[str]]:
    """How each rank fared, and the reasons of those that failed."""
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
