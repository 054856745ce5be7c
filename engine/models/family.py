"""What it takes to serve one architecture."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from baton.engine.checkpoint.config import ModelConfig
from baton.engine.models.decoder import Decoder


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    build: Callable[[ModelConfig], Decoder]
    """Makes the model, without memory for its weights."""
    checkpoint: Mapping[str, tuple[str, ...]]
    """Our names <- the tensors of a checkpoint that each is stacked from; {i} counts blocks."""
    defaults: Mapping[str, object] = field(default_factory=dict)
    """Keys of `config.json` whose default is the family's own."""
