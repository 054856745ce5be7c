"""What it takes to serve one architecture."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from baton.engine.checkpoint.arrangement import Arrangement
from baton.engine.checkpoint.config import MUST_BE, ModelConfig
from baton.engine.checkpoint.config_keys import ConfigKeys
from baton.engine.models.decoder import Decoder


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    description: str
    """One line: which models they are, and what is particular about them."""
    parse: Callable[[ConfigKeys], ModelConfig]
    build: Callable[[ModelConfig], Decoder]
    """Makes the model, without memory for its weights."""
    checkpoint: Mapping[str, tuple[str, ...]]
    """Our names <- the tensors of a checkpoint that each is stacked from; {i} counts blocks."""
    arrangements: Mapping[str, Arrangement] = field(default_factory=dict)
    """Those of our names whose tensors lie in another way."""
    base_prefix: str = ""
    """Checkpoints of the model without its head may leave it out of their names."""
    buffers: tuple[str, ...] = (".rotary_emb.inv_freq",)
    """Ends of names that checkpoints have but that are no weights."""
    names: Mapping[str, str] = field(default_factory=dict)
    """The family's own names for customary keys of `config.json`."""
    defaults: Mapping[str, object] = field(default_factory=dict)
    """Keys of `config.json`, by the family's names, whose default is its own."""
    must_be: Mapping[str, tuple[object, ...]] = field(default_factory=dict)
    """Keys that change the mathematics, and the values that are implemented. Absent is fine."""

    def parse_config(self, raw: Mapping[str, object]) -> ModelConfig:
        """Raises CheckpointError, naming the key, on values missing, odd or unsupported."""
        keys = ConfigKeys(raw, names=self.names, defaults=self.defaults)
        keys.refuse_unsupported({**MUST_BE, **self.must_be})
        return self.parse(keys)
