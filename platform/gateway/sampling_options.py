"""What a caller may ask of sampling, checked and filled in.

    caller's options, else the model's defaults, else Baton's  ->  SamplingParams, stop strings

Both faces come here, so that both refuse the same things in the same words.
"""

from __future__ import annotations

import math
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from baton.core.errors import ContextExceeded, InvalidRequest
from baton.core.messages import SamplingParams
from baton.platform.gateway.text.model_files import SamplingDefaults

MAX_LOGPROBS = 20
MAX_STOPS = 64
MAX_STOP_CHARS = 256
MAX_STOP_TOKENS = 256
SEED_BITS = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingOptions:
    """As the caller wrote them; None is left out."""

    temperature: float | None = None
    top_k: int | None = None
    """0 and -1 keep all tokens."""
    top_p: float | None = None
    min_p: float | None = None
    repetition_penalty: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    max_tokens: int | None = None
    min_tokens: int | None = None
    stop: Sequence[str] = ()
    stop_token_ids: Sequence[int] = ()
    ignore_eos: bool | None = None
    num_logprobs: int | None = None
    seed: int | None = None
    """Any 64 bits, with or without a sign."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingRules:
    """What a request's options are checked against and filled in from."""

    defaults: SamplingDefaults
    vocab_size: int
    max_model_len: int
    default_max_tokens: int | None = None
    """None: what is left of the context."""
    field_by_option: Mapping[str, str] = field(default_factory=dict)
    """Where the caller's name for an option, or for the prompt, is not ours."""

    def field(self, option: str) -> str:
        return self.field_by_option.get(option, option)

    def invalid(self, option: str, remedy: str, index: int | None = None) -> InvalidRequest:
        name = self.field(option)
        path = name if index is None else f"{name}[{index}]"
        return InvalidRequest(f"{path} {remedy}", field=path)


def check_prompt(prompt: Sequence[int], rules: SamplingRules) -> None:
    """Raises InvalidRequest, or ContextExceeded if no room is left for output."""
    if not prompt:
        raise rules.invalid("prompt", "is empty; it needs at least one token")
    if len(prompt) >= rules.max_model_len:
        raise ContextExceeded(
            f"this model's maximum context length is {rules.max_model_len} tokens, and the prompt "
            f"has {len(prompt)}; shorten it",
            field=rules.field("prompt"),
        )
    if not 0 <= min(prompt) <= max(prompt) < rules.vocab_size:
        index = next(i for i, token in enumerate(prompt) if not 0 <= token < rules.vocab_size)
        raise rules.invalid("prompt", f"must be a token id below {rules.vocab_size}", index)


def check_stops(options: SamplingOptions, rules: SamplingRules) -> tuple[str, ...]:
    """The stop strings. Raises InvalidRequest."""
    if len(options.stop) > MAX_STOPS:
        raise rules.invalid("stop", f"has {len(options.stop)} strings; at most {MAX_STOPS} can be")
    for index, stop in enumerate(options.stop):
        if not 1 <= len(stop) <= MAX_STOP_CHARS:
            raise rules.invalid("stop", f"must have 1 to {MAX_STOP_CHARS} characters", index)
    return tuple(dict.fromkeys(options.stop))


def resolve_sampling(
    options: SamplingOptions, rules: SamplingRules, *, num_prompt: int
) -> SamplingParams:
    """Every option with a value. Raises InvalidRequest, naming the option as the caller did."""
    defaults = rules.defaults
    max_tokens = _max_tokens(options, rules, num_prompt)
    return SamplingParams(
        temperature=_number(options, "temperature", rules, (0.0, math.inf), defaults.temperature),
        top_k=_top_k(options, rules),
        top_p=_number(options, "top_p", rules, (math.ulp(0.0), 1.0), defaults.top_p),
        min_p=_number(options, "min_p", rules, (0.0, 1.0), defaults.min_p),
        repetition_penalty=_number(
            options,
            "repetition_penalty",
            rules,
            (math.ulp(0.0), math.inf),
            defaults.repetition_penalty,
        ),
        presence_penalty=_number(options, "presence_penalty", rules, (-2.0, 2.0), 0.0),
        frequency_penalty=_number(options, "frequency_penalty", rules, (-2.0, 2.0), 0.0),
        max_tokens=max_tokens,
        min_tokens=_min_tokens(options, rules, max_tokens),
        stop_token_ids=_stop_tokens(options, rules),
        ignore_eos=bool(options.ignore_eos),
        num_logprobs=_num_logprobs(options, rules),
        seed=_seed(options, rules),
    )


def _number(
    options: SamplingOptions,
    name: str,
    rules: SamplingRules,
    limits: tuple[float, float],
    default: float,
) -> float:
    value: float | None = getattr(options, name)
    if value is None:
        return default
    low, high = limits
    if not (low <= value <= high and math.isfinite(value)):
        least = "above 0" if 0 < low < 1e-300 else f"at least {low:g}"
        most = "" if math.isinf(high) else f" and at most {high:g}"
        raise rules.invalid(name, f"must be {least}{most}; got {value:g}")
    return float(value)


def _top_k(options: SamplingOptions, rules: SamplingRules) -> int:
    top_k = rules.defaults.top_k if options.top_k is None else options.top_k
    if top_k < -1:
        raise rules.invalid("top_k", f"must be at least 1, or 0 for all tokens; got {top_k}")
    return min(max(top_k, 0), rules.vocab_size)


def _max_tokens(options: SamplingOptions, rules: SamplingRules, num_prompt: int) -> int:
    room = rules.max_model_len - num_prompt
    asked = rules.default_max_tokens if options.max_tokens is None else options.max_tokens
    if asked is None:
        return room
    if asked < 1:
        raise rules.invalid("max_tokens", f"must be at least 1; got {asked}")
    if asked > room and options.max_tokens is not None:
        name = rules.field("max_tokens")
        raise ContextExceeded(
            f"this model's maximum context length is {rules.max_model_len} tokens, and the request "
            f"wants {num_prompt + asked}: {num_prompt} of prompt and {asked} of output; shorten "
            f"the prompt or lower {name}",
            field=name,
        )
    return min(asked, room)


def _min_tokens(options: SamplingOptions, rules: SamplingRules, max_tokens: int) -> int:
    min_tokens = options.min_tokens or 0
    if not 0 <= min_tokens <= max_tokens:
        limit = f"between 0 and {rules.field('max_tokens')}, here {max_tokens}"
        raise rules.invalid("min_tokens", f"must be {limit}; got {min_tokens}")
    return min_tokens


def _stop_tokens(options: SamplingOptions, rules: SamplingRules) -> tuple[int, ...]:
    tokens = options.stop_token_ids
    if len(tokens) > MAX_STOP_TOKENS:
        raise rules.invalid("stop_token_ids", f"can have at most {MAX_STOP_TOKENS} tokens")
    for index, token in enumerate(tokens):
        if not 0 <= token < rules.vocab_size:
            remedy = f"must be a token id below {rules.vocab_size}; got {token}"
            raise rules.invalid("stop_token_ids", remedy, index)
    return tuple(dict.fromkeys(tokens))


def _num_logprobs(options: SamplingOptions, rules: SamplingRules) -> int | None:
    num_logprobs = options.num_logprobs
    if num_logprobs is not None and not 0 <= num_logprobs <= MAX_LOGPROBS:
        raise rules.invalid("num_logprobs", f"must be 0 to {MAX_LOGPROBS}; got {num_logprobs}")
    return num_logprobs


def _seed(options: SamplingOptions, rules: SamplingRules) -> int:
    if options.seed is None:
        return secrets.randbits(SEED_BITS)
    if not -(1 << (SEED_BITS - 1)) <= options.seed < 1 << SEED_BITS:
        raise rules.invalid("seed", f"must fit into {SEED_BITS} bits")
    return options.seed % (1 << SEED_BITS)
