"""Features kept for others: what a replica that drafts nothing leaves in the blocks it hands over,
and whether that is worth its place there.

    MTP, EAGLE    features [D] a token; the head reads them where it drafts
    draft model   nothing: it reads prompts where it drafts
    Medusa        nothing: it needs the last hidden state alone

To compute features a decode replica would have to run the whole model over the prompt, so they are
carried; a draft model's KV costs the same work wherever it is computed, and no bytes where it is
needed (docs/engine.md has the figures). What speaks against carrying is the room that features
take in every block.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from baton.core.kv_layout import OUTPUTS, DraftFeatures, KvLayout
from baton.engine.checkpoint.load import LoadedModel
from baton.engine.config import EngineConfig
from baton.engine.models.heads.draft_head import FeatureReader
from baton.engine.models.skeleton.taps import AuxHiddenStates
from baton.engine.request.request import Request
from baton.engine.speculation.carrying import SPEEDS, Needs
from baton.engine.speculation.draft_budget import FixedBudget
from baton.engine.speculation.drafter import NO_DRAFT, Draft
from baton.engine.speculation.feature_plane import FeaturePlane
from baton.engine.speculation.hidden_reader import Shown
from baton.engine.speculation.speculation import Speculation

MAX_SHARE = 0.25
"""Largest share of a block's KV that features may take, unless they are asked for."""
logger = logging.getLogger(__name__)


class FeatureKeeper:
    """A `Drafter` and `HiddenReader` that keeps, and drafts nothing."""

    name = "features"
    is_costly = False
    num_passes = 0
    num_missing: int = 0
    num_recalled: int = 0

    def __init__(
        self, taps: AuxHiddenStates | None = None, join: Callable[[Tensor], Tensor] | None = None
    ) -> None:
        """Features are made of `taps`, or of the model's outputs, by `join`, if that is given."""
        self.taps = taps
        self._join = join

    @classmethod
    def of(cls, head: FeatureReader | None) -> FeatureKeeper:
        """None: of one that takes outputs as they are."""
        if head is None or not head.taps:
            return cls()
        return cls(AuxHiddenStates(head.taps), head.joined)

    @torch.inference_mode()
    def read(
        self,
        shown: Sequence[Shown],
        hidden: Tensor,
        features: FeaturePlane | None = None,
        *,
        is_resting: bool,
    ) -> None:
        """See `HiddenReader`."""
        if features is not None:
            rows = hidden if self.taps is None else self.taps.features
            features.keep(shown, rows if self._join is None else self._join(rows))

    def propose(self, requests: Sequence[Request], max_tokens: int) -> list[Draft]:
        return [NO_DRAFT] * len(requests)

    def forget(self, request: Request) -> None:
        """It knows of no request."""

    def recall(self, requests: Sequence[Request], features: FeaturePlane | None) -> None:
        """It reads nothing."""

    def discard(self, request: Request) -> None:
        """Its blocks are wiped with all that they hold."""


class Keeping(Speculation):
    def metrics(self) -> dict[str, float]:
        """None: rates of what is never drafted would read as drafts that are all wrong."""
        return {}


def keeping(keeper: FeatureKeeper) -> Speculation:
    """The speculation of an engine that keeps features and drafts nothing."""
    return Keeping(keeper, FixedBudget(0), reader=keeper)


def features_of(
    config: EngineConfig, loaded: LoadedModel, head: FeatureReader | None, device: str
) -> DraftFeatures | None:
    """What to keep for heads as `config` says; None: nothing. The log tells which, and why: of
    prompts whose features are cheaper computed than carried, so is all of the KV."""
    wanted = config.keeps_features_for
    if wanted is None or not wanted.wants_features:
        return None
    if loaded.groups.mesh.size > 1:
        logger.warning(
            "no features are kept for %s: they are those of a model on one device, and this one is "
            "on %d ranks; prompts that this replica computes are drafted for without",
            wanted.method,
            loaded.groups.mesh.size,
        )
        return None
    features = DraftFeatures(
        kind=OUTPUTS if head is None else head.features,
        width=loaded.model.width if head is None else head.width,
        dtype=loaded.info.dtype,
    )
    layout = loaded.info.layout(config.cache.block_size, config.cache.kv_dtype)
    share = share_of(features, layout)
    needs = Needs(carried_bytes=features.token_bytes, computed_flops=2 * loaded.num_active)
    speeds = SPEEDS[device if device in SPEEDS else "cuda"]
    is_cheaper = not loaded.num_active or needs.cheaper(speeds) == "carry"
    is_kept = wanted.features == "on" or (is_cheaper and share <= MAX_SHARE)
    logger.log(
        logging.INFO if is_kept else logging.WARNING,
        "features for %s, %d items of %s a token, would add %.0f %% to a block of KV, and take "
        "%.1f us to carry, against %.1f us to compute: %s",
        wanted.method,
        features.width,
        features.dtype,
        100 * share,
        1e6 * needs.seconds("carry", speeds),
        1e6 * needs.seconds("compute", speeds),
        "kept and handed over" if is_kept else "not kept; set speculation.features to on for them",
    )
    return features if is_kept else None


def share_of(features: DraftFeatures, layout: KvLayout) -> float:
    """Bytes of features for each byte of the KV that `layout` says."""
    return features.token_bytes * layout.block_size / layout.block_bytes
