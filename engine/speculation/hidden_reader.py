"""The interface of a drafter that reads the hidden states of each pass.

    the pass   tokens 5 6 7 | drafted x y      returns rows of all five, rejected drafts included
    read       (request, 5, 5), rows [5, D]    called before the tokens count as computed
    propose    uses the rows of tokens that turned out right

If the KV layout has a plane of features, the reader stores there what it derives from the rows, and
finds there the features of tokens that were computed elsewhere.

If no drafter reads hidden states, a pass returns only the rows that are sampled from.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from baton.engine.models.skeleton.taps import AuxHiddenStates
from baton.engine.request.request import Request
from baton.engine.speculation.feature_plane import FeaturePlane


class Shown(NamedTuple):
    """A run of rows of hidden states: those of `num_rows` tokens of `request`, from position
    `start` on."""

    request: Request
    start: int
    num_rows: int


class HiddenReader(Protocol):
    """Belongs to the engine's thread."""

    taps: AuxHiddenStates | None
    """Intermediate layers whose hidden states it reads, too; None if it only reads the outputs."""
    num_passes: int
    """How many passes before a draft it needs to be shown; it keeps nothing of earlier ones."""
    num_missing: int
    """Number of tokens so far that were skipped because their hidden states were not shown: they
    were computed by another replica, or found in the prefix cache. Drafts are made without them."""
    num_recalled: int
    """Number of tokens so far whose features were read from the blocks where they are kept."""

    def read(
        self,
        shown: Sequence[Shown],
        hidden: Tensor,
        features: FeaturePlane | None = None,
        *,
        is_paused: bool,
    ) -> None:
        """Take in the hidden states [S, D] of a pass, rows of `shown` end to end. They are valid
        until the next pass. Requests that only want an embedding are never drafted for.

        `features`: the plane to store features in, if there is one. `is_paused`: drafting is
        paused for many steps, so reading must take next to no time.
        """

    def recall(self, requests: Sequence[Request], features: FeaturePlane | None) -> None:
        """Read the kept features, not read before, of requests that are about to be drafted for."""

    def discard(self, request: Request) -> None:
        """Forget a request whose hidden states turned out wrong, and remove everything derived from
        them from the caches."""


def tails(shown: Sequence[Shown], rows: Tensor, most: int) -> tuple[Sequence[Shown], Tensor]:
    """A copy of at most the last `most` rows of each request, with their runs. Prompts have many
    rows, and only the last are worth their memory."""
    if all([each.num_rows <= most for each in shown]):
        return shown, rows.clone()
    kept, pieces, stop = [], [], 0
    for request, start, num_rows in shown:
        stop += num_rows
        num_kept = min(num_rows, most)
        kept.append(Shown(request, start + num_rows - num_kept, num_kept))
        pieces.append(rows[stop - num_kept : stop])
    return kept, torch.cat(pieces)
