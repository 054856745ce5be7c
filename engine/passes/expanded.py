"""Whether a pass computes latent attention in expanded form (`baton.kernels.latent_attention`). The
form is chosen by lengths; tapes and graphs only have the absorbed one."""

from __future__ import annotations

from collections.abc import Sequence

from baton.engine.batch.batch import Chunk
from baton.engine.batch.decoding import Decoding
from baton.kernels.latent_attention.latent_attention import MIN_EXPANDED, is_expanded_cheaper
from baton.kernels.latent_attention.latent_heads import LatentShape


def has_expanded(chunks: Sequence[Chunk], latent: LatentShape | None, item_bytes: int) -> bool:
    """Whether any request's latent attention is computed in expanded form. `latent` is its shape;
    None for a model without latent attention, or with a fixed form."""
    if latent is None or isinstance(chunks, Decoding):
        return False
    return any(
        is_expanded_cheaper(latent, query_len, chunk.start + query_len, item_bytes)
        for chunk in chunks
        if (query_len := len(chunk.tokens)) >= MIN_EXPANDED
    )
