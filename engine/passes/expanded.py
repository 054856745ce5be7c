"""Whether a pass has latents that are expanded (`baton.kernels.latent_attention`): a form that is
chosen by lengths, and that neither a tape nor a graph has."""

from __future__ import annotations

from collections.abc import Sequence

from baton.engine.batch.batch import Chunk
from baton.engine.batch.decoding import Decoding
from baton.kernels.latent_attention.latent_attention import MIN_EXPANDED, is_expanded_cheaper
from baton.kernels.latent_attention.latent_heads import LatentShape


def has_expanded(chunks: Sequence[Chunk], latent: LatentShape | None, item_bytes: int) -> bool:
    """Whether the latents of any request are. `latent` is their shape; None: there are none, or
    they have one form."""
    if latent is None or isinstance(chunks, Decoding):
        return False
    return any(
        is_expanded_cheaper(latent, query_len, chunk.start + query_len, item_bytes)
        for chunk in chunks
        if (query_len := len(chunk.tokens)) >= MIN_EXPANDED
    )
