"""The reader of hidden states: a drafter that is shown what each pass of the model computes.

    the pass   tokens 5 6 7 | drafted x y      rows of all of them, also of what turns out wrong
    read       (request, 5, 5), rows [5, D]    before tokens count as computed
    propose    of these the rows of known tokens

Where blocks have a plane of features, the reader keeps in it what it makes of the rows, and finds
there what others made of tokens that they computed.

Where nobody reads them a pass gives the rows that are sampled from, and no more.
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
    """The next rows are of `num_rows` tokens of a request, from position `start` on."""

    request: Request
    start: int
    num_rows: int


class HiddenReader(Protocol):
    """Belongs to the engine's thread."""

    taps: AuxHiddenStates | None
    """What the passes are to tell of besides, for it to read."""
    num_passes: int
    """Last passes before a draft that it wants to be shown: of others it keeps nothing."""
    num_missing: int
    """Tokens so far whose hidden states it was not shown, but those behind them: computed by
    another replica, or found in the prefix cache. Its drafts are made without them."""
    num_recalled: int
    """Tokens so far whose features it read where they are kept, whoever computed them."""

    def read(
        self,
        shown: Sequence[Shown],
        hidden: Tensor,
        features: FeaturePlane | None = None,
        *,
        is_resting: bool,
    ) -> None:
        """A pass is computed; `hidden` [S, D] stays until the next. Who only wants an embedding
        is drafted for never. `is_resting`: nothing will be drafted for many steps, and to read must
        take next to no time."""

    def recall(self, requests: Sequence[Request], features: FeaturePlane | None) -> None:
        """Read kept features of requests that are about to be drafted for, if they were not read
        yet."""

    def discard(self, request: Request) -> None:
        """Forget it: what it was shown is wrong, and nobody may come upon what was made of it."""


def tails(shown: Sequence[Shown], rows: Tensor, most: int) -> tuple[Sequence[Shown], Tensor]:
    """At most so many rows of each, the last ones, in memory of their own: prompts have many."""
    if all([each.num_rows <= most for each in shown]):
        return shown, rows.clone()
    kept, pieces, stop = [], [], 0
    for request, start, num_rows in shown:
        stop += num_rows
        num_kept = min(num_rows, most)
        kept.append(Shown(request, start + num_rows - num_kept, num_kept))
        pieces.append(rows[stop - num_kept : stop])
    return kept, torch.cat(pieces)
