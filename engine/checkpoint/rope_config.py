"""The rotary positions that `config.json` asks for, in either of its spellings.

until transformers 4:  "rope_theta": 5e5,  "rope_scaling": {"rope_type": "llama3", ...} or null
since transformers 5:  "rope_parameters": {"rope_theta": 5e5, "rope_type": "llama3", ...}
"""

from __future__ import annotations

from collections.abc import Mapping

from baton.core.errors import CheckpointError
from baton.engine.layers.rope import LinearScaling, Llama3Scaling, Rope

DEFAULT_THETA = 10000.0


def parse_rope(raw: Mapping[str, object], head_dim: int) -> Rope:
    """Raises CheckpointError on unknown or incomplete scalings."""
    name = "rope_parameters" if raw.get("rope_parameters") else "rope_scaling"
    found = raw.get(name) or {}
    if not isinstance(found, Mapping):
        raise CheckpointError(f"config.json: `{name}` must be an object, not {found!r}")
    parameters = {"rope_theta": raw.get("rope_theta") or DEFAULT_THETA, **found}
    if raw.get("rope_theta") not in (None, parameters["rope_theta"]):
        raise CheckpointError(
            f"config.json: `rope_theta` is {raw['rope_theta']!r} on its own but "
            f"{parameters['rope_theta']!r} in `{name}`"
        )
    if parameters.get("partial_rotary_factor", 1) != 1:
        raise CheckpointError(
            f"config.json: `{name}.partial_rotary_factor` is "
            f"{parameters['partial_rotary_factor']!r}; supported is 1"
        )
    return Rope(
        head_dim=head_dim,
        theta=_number(parameters, name, "rope_theta"),
        scaling=_parse_scaling(parameters, name),
    )


def _parse_scaling(
    parameters: Mapping[str, object], name: str
) -> LinearScaling | Llama3Scaling | None:
    match parameters.get("rope_type", parameters.get("type", "default")):
        case "default":
            return None
        case "linear":
            return LinearScaling(factor=_number(parameters, name, "factor"))
        case "llama3":
            return _parse_llama3(parameters, name)
        case other:
            raise CheckpointError(
                f"config.json: `{name}.rope_type` is {other!r}; "
                "supported are default, linear, llama3"
            )


def _parse_llama3(parameters: Mapping[str, object], name: str) -> Llama3Scaling:
    scaling = Llama3Scaling(
        factor=_number(parameters, name, "factor"),
        low_freq_factor=_number(parameters, name, "low_freq_factor"),
        high_freq_factor=_number(parameters, name, "high_freq_factor"),
        original_max_position_embeddings=int(
            _number(parameters, name, "original_max_position_embeddings")
        ),
    )
    if scaling.high_freq_factor <= scaling.low_freq_factor:
        raise CheckpointError(
            f"config.json: `{name}.high_freq_factor` {scaling.high_freq_factor} must exceed "
            f"`low_freq_factor` {scaling.low_freq_factor}"
        )
    return scaling


def _number(parameters: Mapping[str, object], name: str, key: str) -> float:
    value = parameters.get(key)
    if not isinstance(value, int | float) or isinstance(value, bool) or value <= 0:
        raise CheckpointError(
            f"config.json: `{name}.{key}` must be a positive number, not {value!r}"
        )
    return float(value)
