"""Sampling options of the API as command-line options."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, get_type_hints

from baton.gateway.requests.options import SamplingOptions
from baton.platform.cli.options.generated_options import Command, GeneratedOption, with_options

PANEL = "Sampling"
NOT_FLAGS = frozenset(
    {"allowed_token_ids", "best_of", "logit_bias", "logprobs", "n", "priority", "prompt_logprobs"}
)
"""API options that make no sense on a command line."""
NAMES = tuple(name for name in SamplingOptions.__struct_fields__ if name not in NOT_FLAGS)


def with_sampling_options(into: str) -> Callable[[Command], Command]:
    """Give a command these options in the place of its parameter `into`: a `SamplingOptions`."""
    hints = get_type_hints(SamplingOptions, include_extras=True)

    def to_options(values: Mapping[str, Any]) -> SamplingOptions:
        return SamplingOptions(**values)

    return with_options(into, [_option(name, hints[name]) for name in NAMES], to_options)


def _option(name: str, hint: Any) -> GeneratedOption:
    return GeneratedOption(
        parameter=name,
        flag=f"--{name.replace('_', '-')}",
        hint=hint,
        help=hint.__metadata__[0].description,
        panel=PANEL,
    )
