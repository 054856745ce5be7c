"""What an embedding is, whatever dtype the hidden states come in."""

from __future__ import annotations

import torch

from baton.core.messages import Pooling
from baton.engine.request.pooling import Embedding


def test_the_mean_of_narrow_hidden_states_is_as_exact_as_float32() -> None:
    embedding = Embedding(Pooling.MEAN)

    embedding.read(0, torch.ones(257, 1, dtype=torch.bfloat16))  # bfloat16 has no 257
    embedding.read(257, torch.ones(130, 1, dtype=torch.bfloat16))

    assert embedding.vector() == (1.0,)
