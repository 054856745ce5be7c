"""The definition of one architecture."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from baton.engine.models.config.arrangement import Arrangement
from baton.engine.models.config.keys import ConfigKeys
from baton.engine.models.config.model_config import MUST_BE, ModelConfig
from baton.engine.models.skeleton.decoder import Decoder


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    description: str
    """One line: the models, and their particularities."""
    parse: Callable[[ConfigKeys], ModelConfig]
    build: Callable[[ModelConfig], Decoder]
    """Makes the model, without memory for its weights."""
    checkpoint: Mapping[str, tuple[str, ...]]
    """Our names <- the checkpoint tensors that each is stacked from;
    {i} counts blocks, {e} the experts of one."""
    other_names: tuple[Mapping[str, tuple[str, ...]], ...] = ()
    """Alternative checkpoint names of some tensors."""
    arrangements: Mapping[str, Arrangement] = field(default_factory=dict)
    """Arrangements of tensors with another layout, by our names or by source."""
    base_prefix: str = ""
    """A prefix that checkpoints of the model without its head may omit."""
    buffers: tuple[str, ...] = (".rotary_emb.inv_freq",)
    """Suffixes of checkpoint names that are no weights."""
    integers: tuple[str, ...] = ()
    """Suffixes of needed integer tensors."""
    further_layers: str = ""
    """Prefix of layer names; layers beyond the last one are ignored."""
    foreign: tuple[str, ...] = ()
    """Prefixes of tensors that are not part of the text model."""
    text_key: str | None = None
    """The key in `config.json` that contains the text model's keys, if any."""
    names: Mapping[str, str] = field(default_factory=dict)
    """The family's own names for customary keys of `config.json`."""
    defaults: Mapping[str, object] = field(default_factory=dict)
    """Keys of `config.json`, by the family's names, whose default is its own."""
    must_be: Mapping[str, tuple[object, ...]] = field(default_factory=dict)
    """Keys that change the mathematics, and the values that are implemented. Absent is fine."""

    def is_of_further_layer(self, name: str, num_layers: int) -> bool:
        """Whether a tensor belongs to a layer beyond the last."""
        if not self.further_layers:
            return False
        prefix, _, dot = self.further_layers.partition("{i}")
        number, is_named, _ = name.removeprefix(prefix).partition(dot)
        is_layer = bool(prefix and is_named) and name.startswith(prefix) and number.isdigit()
        return is_layer and int(number) >= num_layers

    def parse_config(self, raw: Mapping[str, object]) -> ModelConfig:
        """Raises CheckpointError, naming the key, on values missing, odd or unsupported."""
        nested = None if self.text_key is None else raw.get(self.text_key)
        if isinstance(nested, Mapping):
            raw = {**nested, "architectures": raw.get("architectures")}
        keys = ConfigKeys(raw, names=self.names, defaults=self.defaults)
        keys.refuse_unsupported({**MUST_BE, **self.must_be})
        return self.parse(keys)
