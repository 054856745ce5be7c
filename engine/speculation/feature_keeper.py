"""Draft features kept for other replicas: what a prefill replica, which does not draft, stores in
the blocks that it hands over, and whether that is worth the memory.

    MTP, EAGLE    features [D] per token; the head of the decode replica reads them
    draft model   nothing: it computes its KV of prompts on the decode replica
    Medusa        nothing: it needs the last hidden state only

Without them a decode replica would have to run the whole model over the prompt again, so features
are sent. A draft model's KV takes the same work on either replica, and computed where it is needed
it need not be sent (docs/speculation.md has the figures). The cost of sending features is the
memory that they take in every block.
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
"""Largest size of features, as a share of a block's KV, with which `speculation.features` = auto
keeps them."""
logger = logging.getLogger(__name__)


class FeatureKeeper:
    """A `Drafter` and `HiddenReader` that stores features and drafts nothing."""

    name = "features"
    is_costly = False
    num_passes = 0
    num_missing: int = 0
    num_recalled: int = 0

    def __init__(
        self, taps: AuxHiddenStates | None = None, join: Callable[[Tensor], Tensor] | None = None
    ) -> None:
        """Features are made from the hidden states of `taps`, or from the model's outputs if that
        is None. `join` maps them to features [S, D]; without it they are stored as they are."""
        self.taps = taps
        self._join = join

    @classmethod
    def of(cls, head: FeatureReader | None) -> FeatureKeeper:
        """The keeper for this head; None stands for a head that reads the model's outputs as they
        are."""
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
        is_paused: bool,
    ) -> None:
        """See `HiddenReader`."""
        if features is not None:
            rows = hidden if self.taps is None else self.taps.features
            features.keep(shown, rows if self._join is None else self._join(rows))

    def propose(self, requests: Sequence[Request], max_tokens: int) -> list[Draft]:
        return [NO_DRAFT] * len(requests)

    def forget(self, request: Request) -> None:
        """Does nothing: no state is kept per request."""

    def recall(self, requests: Sequence[Request], features: FeaturePlane | None) -> None:
        """Does nothing: kept features are read by drafters only."""

    def discard(self, request: Request) -> None:
        """Does nothing: the features lie in the request's blocks, which are wiped anyway."""


class Keeping(Speculation):
    """The speculation of an engine that keeps features and drafts nothing."""

    def metrics(self) -> dict[str, float]:
        """No metrics: an acceptance rate of 0 would look as if all drafts were rejected."""
        return {}


def keeping(keeper: FeatureKeeper) -> Speculation:
    """The speculation of an engine that keeps features and drafts nothing."""
    return Keeping(keeper, FixedBudget(0), reader=keeper)


def features_of(
    config: EngineConfig, loaded: LoadedModel, head: FeatureReader | None, device: str
) -> DraftFeatures | None:
    """The features to keep for draft heads of other replicas, as `config` says; None for none.

    The decision is logged. Features are not kept by default if computing a prompt again would be
    faster than sending them, because then sending its KV would not pay either.
    """
    wanted = config.keeps_features_for
    if wanted is None or not wanted.wants_features:
        return None
    if loaded.groups.mesh.size > 1:
        logger.warning(
            "no features are kept for %s: they are supported for a model on one device only, and "
            "this one is on %d ranks; drafts for prompts that this replica computes are made "
            "without them",
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
        "features for %s, %d values of %s per token, would add %.0f %% to a block of KV, and take "
        "%.1f us to send, against %.1f us to compute again: %s",
        wanted.method,
        features.width,
        features.dtype,
        100 * share,
        1e6 * needs.seconds("carry", speeds),
        1e6 * needs.seconds("compute", speeds),
        "kept and handed over"
        if is_kept
        else "not kept; set speculation.features to on to keep them",
    )
    return features if is_kept else None


def share_of(features: DraftFeatures, layout: KvLayout) -> float:
    """Size of the features as a share of a block's KV in `layout`."""
    return features.token_bytes * layout.block_size / layout.block_bytes
