"""Sampling options of a request: one schema for HTTP and gRPC.

    HTTP body (inherits the fields)  --+
                                       +--> SamplingOptions --> sampling_options.py: checked
    protobuf SamplingOptions (by name) +

An option that is not set is None. Ranges are data (`RANGES`, and in the OpenAPI document) rather
than part of decoding, so that both APIs refuse a value with the same message.
"""

from __future__ import annotations

import math
from typing import Annotated, Any, NamedTuple, get_type_hints

import msgspec
from msgspec import Meta

HUGE = 1 << 63


def is_huge(value: float) -> bool:
    """Whether a number is infinite, NaN, or an integer too large for a float, all of which JSON can
    spell."""
    return not -HUGE < value < HUGE if isinstance(value, int) else not math.isfinite(value)


class Range(NamedTuple):
    low: float
    high: float
    excludes_low: bool = False

    def __contains__(self, value: object) -> bool:
        if not isinstance(value, int | float) or is_huge(value):
            return False
        is_above = value > self.low if self.excludes_low else value >= self.low
        return is_above and value <= self.high

    def __str__(self) -> str:
        least = f"above {shown(self.low)}" if self.excludes_low else f"at least {shown(self.low)}"
        return least if math.isinf(self.high) else f"{least} and at most {shown(self.high)}"


def shown(number: float) -> str:
    """Whole numbers with all of their digits."""
    return str(number) if isinstance(number, int) else f"{number:g}"


def _doc(text: str) -> Meta:
    return Meta(description=text)


def _within(text: str, low: float, high: float = math.inf, *, excludes_low: bool = False) -> Meta:
    limits: dict[str, Any] = {"exclusiveMinimum" if excludes_low else "minimum": low}
    if not math.isinf(high):
        limits["maximum"] = high
    allowed = Range(low, high, excludes_low)
    return Meta(description=text, extra_json_schema=limits, extra={"range": allowed})


INT32_MAX = (1 << 31) - 1


class CommonOptions(msgspec.Struct, kw_only=True):
    temperature: Annotated[
        float | None, _within("0 always takes the most probable token. 1 by default.", 0)
    ] = None
    top_k: Annotated[
        int | None, _within("Draw from so many most probable tokens; 0 and -1: from all.", -1)
    ] = None
    top_p: Annotated[
        float | None,
        _within("Draw from the most probable tokens of this mass.", 0, 1, excludes_low=True),
    ] = None
    min_p: Annotated[
        float | None,
        _within("Draw from tokens with this share of the highest probability.", 0, 1),
    ] = None
    typical_p: Annotated[
        float | None,
        _within("Draw from the most typical tokens of this mass.", 0, 1, excludes_low=True),
    ] = None
    repetition_penalty: Annotated[
        float | None,
        _within("Of tokens seen in prompt or output; above 1 discourages.", 0, excludes_low=True),
    ] = None
    presence_penalty: Annotated[float | None, _within("Of tokens seen in the output.", -2, 2)] = (
        None
    )
    frequency_penalty: Annotated[
        float | None, _within("Of tokens, for each time they were seen in the output.", -2, 2)
    ] = None
    logit_bias: Annotated[
        dict[int, float] | None, _doc("By token id, -100 to 100: added to the token's logit.")
    ] = None
    allowed_token_ids: Annotated[list[int] | None, _doc("Draw from these tokens only.")] = None
    bad_words: Annotated[list[str] | None, _doc("Strings the output may not contain.")] = None
    max_tokens: Annotated[int | None, _doc("Tokens of output at most.")] = None
    min_tokens: Annotated[int | None, _doc("No end of sequence or stop before so many.")] = None
    stop: Annotated[str | list[str] | None, _doc("Strings that end the output.")] = None
    stop_token_ids: Annotated[list[int] | None, _doc("Tokens that end the output.")] = None
    ignore_eos: Annotated[bool | None, _doc("Go on after an end-of-sequence token.")] = None
    seed: Annotated[
        int | None, _doc("Any 64 bits, with or without a sign: equal seeds draw equal tokens.")
    ] = None
    n: Annotated[int | None, _within("Choices for each prompt. 1 by default.", 1)] = None
    best_of: Annotated[
        int | None, _within("Draw so many and return the n of the highest mean logprob.", 1)
    ] = None
    prompt_logprobs: Annotated[
        int | None,
        _within("Logprobs of the prompt's tokens, with so many alternatives each.", 0, 20),
    ] = None
    priority: Annotated[
        int | None,
        _within("Smaller comes first. 0 by default.", -INT32_MAX - 1, INT32_MAX),
    ] = None


class SamplingOptions(CommonOptions, kw_only=True):
    logprobs: Annotated[
        int | None, _within("Logprobs of the output's tokens, with so many alternatives.", 0, 20)
    ] = None


def options_from(source: CommonOptions, **others: Any) -> SamplingOptions:
    """The options of a body; `others` are options under other names."""
    names = CommonOptions.__struct_fields__
    return SamplingOptions(**{**{name: getattr(source, name) for name in names}, **others})


def _ranges() -> dict[str, Range]:
    hints = get_type_hints(SamplingOptions, include_extras=True)
    metas = {name: hint.__metadata__[0] for name, hint in hints.items()}
    return {name: meta.extra["range"] for name, meta in metas.items() if meta.extra}


RANGES = _ranges()
