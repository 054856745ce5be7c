"""Drafts with Medusa heads (Cai et al. 2024, https://arxiv.org/abs/2401.10774), without tree
attention: each head guesses one token, all from the same hidden state.

known  a b c d      C is the model's hidden state of c, from which d was drawn
draft  head 0 (C), head 1 (C), ...

Nothing is kept of a request except the rows of its last pass, and its prompt need not be read.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

import torch
from torch import Tensor

from baton.engine.models.heads.medusa import MedusaHeads
from baton.engine.models.skeleton.taps import AuxHiddenStates
from baton.engine.request.request import Request
from baton.engine.speculation.drafter import Draft
from baton.engine.speculation.feature_plane import FeaturePlane
from baton.engine.speculation.growing_draft import GrowingDraft, grow
from baton.engine.speculation.hidden_reader import Shown, tails

MOST_SHOWN = 64
"""Rows kept per request and pass: enough for the last known token and the draft tokens after it."""


class MedusaDrafter:
    """A `Drafter` and `HiddenReader`."""

    name = "medusa"
    is_costly = True
    num_passes = 1
    drafts_at_once = True
    num_missing: int = 0
    num_recalled: int = 0
    """See `HiddenReader`, as for `num_passes`, `num_missing` and `taps`."""
    taps: AuxHiddenStates | None = None

    def __init__(
        self, heads: MedusaHeads, *, eos_token_ids: Collection[int], has_own_noise: bool = False
    ) -> None:
        """`eos_token_ids` are the model's. `has_own_noise`: see `grow`."""
        self._has_own_noise = has_own_noise
        self._heads = heads
        self._eos_token_ids = eos_token_ids
        self._shown: Sequence[Shown] = ()
        self._rows: Tensor | None = None  # [S, D]
        """Hidden states of the last pass, rows of `_shown` end to end."""

    def read(
        self,
        shown: Sequence[Shown],
        hidden: Tensor,
        features: FeaturePlane | None = None,
        *,
        is_paused: bool,
    ) -> None:
        self._shown, self._rows = tails(shown, hidden, MOST_SHOWN)

    @torch.inference_mode()
    def propose(self, requests: Sequence[Request], max_tokens: int) -> list[Draft]:
        drafts = [GrowingDraft(request) for request in requests]
        places = self._places()
        found = [places.get(request) for request in requests]
        growing = [draft for draft, place in zip(drafts, found, strict=True) if place is not None]
        rows = [place for place in found if place is not None]
        if self._rows is not None and rows:
            self._grow(growing, self._rows[rows], max_tokens)
        return [draft.done() for draft in drafts]

    def forget(self, request: Request) -> None:
        """Does nothing: the next pass replaces all that is kept."""

    def recall(self, requests: Sequence[Request], features: FeaturePlane | None) -> None:
        """Does nothing: no features of prompts are needed."""

    def discard(self, request: Request) -> None:
        self.forget(request)

    def _places(self) -> dict[Request, int]:
        """By request: the row in `_rows` of its token before the last, from which drafts are made.
        Requests whose row was not kept are left out."""
        places, stop = {}, 0
        for request, start, num_rows in self._shown:
            first, stop = stop, stop + num_rows
            place = len(request.tokens) - 2 - start
            if request.embedding is None and 0 <= place < num_rows:
                places[request] = first + place
        return places

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
