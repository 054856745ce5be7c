"""Medusa heads guess several tokens at once, each from the last hidden state of what is known.

known  a b c d      the model gave C, then d was drawn      draft  head 0 (C), head 1 (C), ...

They keep nothing of a request but the rows of its last pass, and need nothing of its prompt.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from baton.engine.models.heads.medusa import MedusaHeads
from baton.engine.models.skeleton.taps import Taps
from baton.engine.request.request import Request
from baton.engine.speculation.drafter import Draft
from baton.engine.speculation.feature_plane import FeaturePlane
from baton.engine.speculation.growing_draft import GrowingDraft, grow
from baton.engine.speculation.hidden_reader import Shown


class _Last(NamedTuple):
    """What the last pass gave of a request's last tokens."""

    start: int
    rows: Tensor  # [n, D]


class MedusaDrafter:
    name = "medusa"
    is_costly = True
    num_missing: int = 0
    num_recalled: int = 0
    """This and those before and behind it: see `HiddenReader`."""
    taps: Taps | None = None

    def __init__(
        self, heads: MedusaHeads, *, eos_token_ids: Collection[int], has_own_noise: bool = False
    ) -> None:
        """`eos_token_ids` are the model's. `has_own_noise`: see `grow`."""
        self._has_own_noise = has_own_noise
        self._heads = heads
        self._eos_token_ids = eos_token_ids
        self._last: dict[Request, _Last] = {}

    def read(
        self, shown: Sequence[Shown], hidden: Tensor, features: FeaturePlane | None = None
    ) -> None:
        stop = 0
        for request, start, num_rows in shown:
            stop += num_rows
            if request.embedding is not None:
                continue
            num_kept = start + num_rows - (len(request.tokens) - 1)
            if num_kept > 0:  # the last known token, and drafts behind it
                rows = hidden[stop - num_kept : stop].clone()
                self._last[request] = _Last(len(request.tokens) - 1, rows)

    @torch.inference_mode()
    def propose(self, requests: Sequence[Request], max_tokens: int) -> list[Draft]:
        drafts = [GrowingDraft(request) for request in requests]
        found = [self._row(request) for request in requests]
        growing = [draft for draft, row in zip(drafts, found, strict=True) if row is not None]
        rows = [row for row in found if row is not None]
        if rows:
            self._grow(growing, torch.stack(rows), max_tokens)
        return [draft.done() for draft in drafts]

    def forget(self, request: Request) -> None:
        self._last.pop(request, None)

    def discard(self, request: Request) -> None:
        self.forget(request)

    def _row(self, request: Request) -> Tensor | None:
        """[D] What the model gave of the token before the last."""
        last = self._last.get(request)
        if last is None:
            return None
        place = len(request.tokens) - 2 - last.start
        return last.rows[place] if 0 <= place < len(last.rows) else None

    def _grow(self, drafts: Sequence[GrowingDraft], hidden: Tensor, max_tokens: int) -> None:
        for number in range(min(max_tokens, self._heads.num_heads)):
            going = grow(
                drafts,
                self._heads.logits(hidden, number),
                self._eos_token_ids,
                has_own_noise=self._has_own_noise,
            )
            if not going:
                return
            if len(going) < len(drafts):
                drafts, hidden = [drafts[row] for row in going], hidden[going]
