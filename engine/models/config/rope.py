"""Parses the rotary settings of `config.json`, in all known formats.

until transformers 4:  "rope_theta": 5e5,  "rope_scaling": {"rope_type": "llama3", ...} or null
since transformers 5:  "rope_parameters": {"rope_theta": 5e5, "rope_type": "llama3", ...}
or, by kind of layer:  "rope_parameters": {"full_attention": {...}, "sliding_attention": {...}}
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from baton.engine.layers.rope import Rope
from baton.engine.layers.rope_scaling import (
    DynamicScaling,
    LinearScaling,
    Llama3Scaling,
    LongRopeScaling,
    Scaling,
    YarnScaling,
)
from baton.engine.models.config.description import unsupported, wrong
from baton.engine.models.config.keys import ConfigKeys


@dataclass(frozen=True, slots=True, kw_only=True)
class RopeKeys:
    """A family's keys of rotary settings."""

    layer_type: str | None = None
    """The layer type, if settings differ by type."""
    theta: str = "rope_theta"
    default_theta: float = 10000.0
    is_scaled: bool = True
    """Whether `rope_scaling` applies."""
    may_be_partial: bool = False
    aliases: Mapping[str, str] = field(default_factory=dict)
    """Older names of scalings."""


CUSTOMARY = RopeKeys()


@dataclass(frozen=True, slots=True)
class _Parameters:
    name: str
    values: Mapping[str, object]
    keys: ConfigKeys
    """Keys of the whole config: some families keep parameters outside of the object, or leave them
    out."""
    rotary_dim: int

    def number(self, key: str, default: float | None = None) -> float:
        value = self.values.get(key)
        value = default if value is None else value
        if not isinstance(value, int | float) or isinstance(value, bool) or value <= 0:
            raise wrong(f"`{self.name}.{key}` must be a positive number, not {value!r}")
        return float(value)

    def optional(self, key: str) -> float | None:
        return None if self.values.get(key) is None else self.number(key)

    def factors(self, key: str) -> tuple[float, ...]:
        """A list with one factor per rotated pair."""
        value = self.values.get(key)
        is_list = isinstance(value, list) and all(isinstance(x, int | float) for x in value)
        if not isinstance(value, list) or not is_list or len(value) != self.rotary_dim // 2:
            raise wrong(
                f"`{self.name}.{key}` must be {self.rotary_dim // 2} numbers, not {value!r}"
            )
        return tuple(map(float, value))

    def original_len(self) -> int:
        outside = self.keys.value("original_max_position_embeddings")
        if outside is not None:
            return self.keys.count("original_max_position_embeddings")
        key = "original_max_position_embeddings"
        return int(self.number(key, self.max_len()))

    def max_len(self) -> int:
        return self.keys.count("max_position_embeddings", 2048)


def parse_rope(keys: ConfigKeys, head_dim: int, at: RopeKeys = CUSTOMARY) -> Rope:
    """Raises CheckpointError on unknown or incomplete scalings."""
    name, found = _find(keys, at)
    alone = keys.value(at.theta)
    if alone is not None and found.get("rope_theta") not in (None, alone):
        raise wrong(f"`{at.theta}` is {alone!r} on its own but {found['rope_theta']!r} in `{name}`")
    values = {"rope_theta": alone or at.default_theta, **found}
    rotary_dim = _rotary_dim(keys, name, values, head_dim, at.may_be_partial)
    parameters = _Parameters(name, values, keys, rotary_dim)
    return Rope(
        rotary_dim=rotary_dim,
        theta=parameters.number("rope_theta"),
        scaling=_parse_scaling(parameters, at.aliases),
    )


def _find(keys: ConfigKeys, at: RopeKeys) -> tuple[str, Mapping[str, object]]:
    """The object with the settings, and its name; {} without scaling."""
    new = _mapping("rope_parameters", keys.value("rope_parameters"))
    old = _mapping("rope_scaling", keys.value("rope_scaling"))
    if new and any(new.get(key) != value for key, value in old.items()):
        raise wrong("`rope_scaling` and `rope_parameters` contradict each other")
    if not new:
        return "rope_scaling", old if at.is_scaled else {}
    is_by_layer_type = any(isinstance(value, Mapping) for value in new.values())
    if is_by_layer_type != (at.layer_type is not None):
        wanted = "one object for each layer type" if at.layer_type else "one object for all layers"
        raise keys.complaint("rope_parameters", f"must be {wanted}")
    if at.layer_type is None:
        return "rope_parameters", new
    name = f"rope_parameters.{at.layer_type}"
    return name, _mapping(name, new.get(at.layer_type))


def _mapping(name: str, found: object) -> Mapping[str, object]:
    if found is None:
        return {}
    if not isinstance(found, Mapping):
        raise wrong(f"`{name}` must be an object, not {found!r}")
    return found


def _rotary_dim(
    keys: ConfigKeys, name: str, values: Mapping[str, object], head_dim: int, may_be_partial: bool
) -> int:
    share = values.get("partial_rotary_factor")
    if share is None:
        share = keys.value("partial_rotary_factor", 1)
    if share != 1 and not may_be_partial:
        raise unsupported(f"`partial_rotary_factor` is {share!r}; supported is 1")
    if not isinstance(share, int | float) or not 0 < share <= 1:
        raise wrong(f"`partial_rotary_factor` must be over 0 and at most 1, not {share!r}")
    rotary_dim = int(head_dim * share)
    if rotary_dim % 2 or rotary_dim == 0:
        raise wrong(
            f"`head_dim` {head_dim} gives {rotary_dim} dimensions that rotate, and "
            "RoPE needs pairs of them"
        )
    return rotary_dim


def _parse_scaling(parameters: _Parameters, aliases: Mapping[str, str]) -> Scaling | None:
    kind = parameters.values.get("rope_type", parameters.values.get("type", "default"))
    parse = _PARSERS.get(aliases.get(str(kind), str(kind)))
    if parse is None:
        raise unsupported(
            f"`{parameters.name}.rope_type` is {kind!r}; supported are {', '.join(_PARSERS)}"
        )
    return parse(parameters)


def _parse_default(parameters: _Parameters) -> None:
    return None


def _parse_linear(parameters: _Parameters) -> Scaling:
    return LinearScaling(factor=parameters.number("factor"))


def _parse_dynamic(parameters: _Parameters) -> Scaling:
    return DynamicScaling(factor=parameters.number("factor"), original_len=parameters.max_len())


def _parse_yarn(parameters: _Parameters) -> Scaling:
    original_len = parameters.original_len()
    factor = parameters.number("factor", parameters.max_len() / original_len)
    is_truncated = parameters.values.get("truncate", True)
    if not isinstance(is_truncated, bool):
        raise wrong(f"`{parameters.name}.truncate` must be true or false, not {is_truncated!r}")
    return YarnScaling(
        factor=factor,
        original_len=original_len,
        fast_turns=parameters.number("beta_fast", 32),
        slow_turns=parameters.number("beta_slow", 1),
        is_truncated=is_truncated,
        attention_factor=_yarn_attention_factor(parameters, factor),
    )


def _yarn_attention_factor(parameters: _Parameters, factor: float) -> float:
    def mscale(weight: float) -> float:
        return 1.0 if factor <= 1 else 0.1 * weight * math.log(factor) + 1.0

    given = parameters.optional("attention_factor")
    if given is not None:
        return given
    # Zero means absent here, as in DeepSeek's checkpoints.
    weight, weight_of_all = (parameters.values.get(k) for k in ("mscale", "mscale_all_dim"))
    if weight and weight_of_all:
        return mscale(parameters.number("mscale")) / mscale(parameters.number("mscale_all_dim"))
    return mscale(1.0)


def parse_score_factor(keys: ConfigKeys, at: RopeKeys = CUSTOMARY) -> float:
    """The factor of scores for `mscale_all_dim`, which also scales unrotated dimensions, unlike cos
    and sin (DeepSeek)."""
    name, values = _find(keys, at)
    kind = values.get("rope_type", values.get("type", "default"))
    if kind == "default" or not values.get("mscale_all_dim"):
        return 1.0
    parameters = _Parameters(name, values, keys, rotary_dim=0)
    weight, factor = parameters.number("mscale_all_dim"), parameters.number("factor")
    return 1.0 if factor <= 1 else (0.1 * weight * math.log(factor) + 1.0) ** 2


def _parse_llama3(parameters: _Parameters) -> Scaling:
    scaling = Llama3Scaling(
        factor=parameters.number("factor"),
        low_freq_factor=parameters.number("low_freq_factor"),
        high_freq_factor=parameters.number("high_freq_factor"),
        original_len=parameters.original_len(),
    )
    if scaling.high_freq_factor < scaling.low_freq_factor:
        raise wrong(
            f"`{parameters.name}.high_freq_factor` {scaling.high_freq_factor} must "
            f"not be below `low_freq_factor` {scaling.low_freq_factor}"
        )
    return scaling


def _parse_longrope(parameters: _Parameters) -> Scaling:
    original_len = parameters.original_len()
    factor = parameters.number("factor", parameters.max_len() / original_len)
    sharpened = math.sqrt(1 + math.log(factor) / math.log(original_len)) if factor > 1 else 1.0
    return LongRopeScaling(
        short_factors=parameters.factors("short_factor"),
        long_factors=parameters.factors("long_factor"),
        original_len=original_len,
        attention_factor=parameters.number("attention_factor", sharpened),
    )


_PARSERS: Mapping[str, Callable[[_Parameters], Scaling | None]] = {
    "default": _parse_default,
    "linear": _parse_linear,
    "dynamic": _parse_dynamic,
    "yarn": _parse_yarn,
    "llama3": _parse_llama3,
    "longrope": _parse_longrope,
}
