"""Checks sampling options and fills in defaults.

    caller's options, else the model's defaults, else Baton's  ->  SamplingParams, stop strings

HTTP and gRPC both use it, so that both refuse with the same messages.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from baton.core.errors import ContextExceeded, InvalidRequest
from baton.core.sampling import Grammar, SamplingParams
from baton.gateway.requests.options import RANGES, SamplingOptions, is_huge, shown
from baton.gateway.text.model_files import BATON_DEFAULTS, SamplingDefaults

MAX_STOPS = 64
MAX_STOP_CHARS = 256
MAX_STOP_TOKENS = 256
MAX_BIASES = 1024
MAX_BIAS = 100.0
MAX_BAD_WORDS = 256
SEED_BITS = 64
NUMBERS = tuple(name for name in SamplingParams.__dataclass_fields__ if name in RANGES)
"""Options that are plain numbers in a range, copied by name."""

N = TypeVar("N", int, float)


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingRules:
    """Limits and defaults for a request's options."""

    defaults: SamplingDefaults
    vocab_size: int
    max_model_len: int
    encode: Callable[[str], tuple[int, ...]]
    """Text to tokens, without special ones."""
    default_max_tokens: int | None = None
    """Used where neither the request nor the model sets it; None: the rest of the context."""
    field_by_option: Mapping[str, str] = field(default_factory=dict)
    """The API's name of an option, where it differs."""

    def field(self, option: str) -> str:
        return self.field_by_option.get(option, option)

    def invalid(self, option: str, remedy: str, index: int | str | None = None) -> InvalidRequest:
        name = self.field(option)
        path = name if index is None else f"{name}[{index}]"
        return InvalidRequest(f"{path} {remedy}", field=path)


def check_prompt(prompt: Sequence[int], rules: SamplingRules, *, field: str = "prompt") -> None:
    """Raises InvalidRequest, or ContextExceeded if no room is left for output."""
    if not prompt:
        raise InvalidRequest(f"{field} is empty; it needs at least one token", field=field)
    if len(prompt) >= rules.max_model_len:
        raise ContextExceeded(
            f"this model's maximum context length is {rules.max_model_len} tokens, and the prompt "
            f"has {len(prompt)}; shorten it",
            field=field,
        )
    check_tokens(prompt, rules.vocab_size, field=field)


def check_tokens(tokens: Sequence[int], vocab_size: int, *, field: str) -> None:
    """Raises InvalidRequest, naming the first that is no token of the model."""
    if tokens and not 0 <= min(tokens) <= max(tokens) < vocab_size:
        index = next(i for i, token in enumerate(tokens) if not 0 <= token < vocab_size)
        path = f"{field}[{index}]"
        remedy = f"must be a token id below {vocab_size}; got {tokens[index]}"
        raise InvalidRequest(f"{path} {remedy}", field=path)


def check_stops(options: SamplingOptions, rules: SamplingRules) -> tuple[str, ...]:
    """The stop strings. Raises InvalidRequest."""
    stops = [options.stop] if isinstance(options.stop, str) else options.stop or []
    if len(stops) > MAX_STOPS:
        raise rules.invalid("stop", f"has {len(stops)} strings; at most {MAX_STOPS} can be")
    for index, stop in enumerate(stops):
        if not 1 <= len(stop) <= MAX_STOP_CHARS:
            raise rules.invalid("stop", f"must have 1 to {MAX_STOP_CHARS} characters", index)
    return tuple(dict.fromkeys(stops))


def resolve_sampling(
    options: SamplingOptions,
    rules: SamplingRules,
    *,
    num_prompt: int,
    grammar: Grammar | None = None,
) -> SamplingParams:
    """Every option with a value. Raises InvalidRequest, naming the option as the caller did."""
    _check_ranges(options, rules)
    if grammar is not None and options.ignore_eos:
        remedy = "does not go with structured output, which ends where its grammar does"
        raise rules.invalid("ignore_eos", f"{remedy}; leave it out")
    numbers = {name: _number(name, options, rules) for name in NUMBERS}
    numbers["top_k"] = min(max(numbers["top_k"], 0), rules.vocab_size)
    max_tokens = _max_tokens(options, rules, num_prompt)
    return SamplingParams(
        **numbers,
        logit_bias=_logit_bias(options, rules),
        allowed_token_ids=_tokens("allowed_token_ids", options.allowed_token_ids, rules),
        bad_words=_bad_words(options, rules),
        grammar=grammar,
        max_tokens=max_tokens,
        min_tokens=_min_tokens(options, rules, max_tokens),
        stop_token_ids=_stop_tokens(options, rules),
        ignore_eos=bool(options.ignore_eos),
        num_logprobs=options.logprobs,
        num_prompt_logprobs=options.prompt_logprobs,
        seed=_seed(options, rules),
    )


def num_choices(options: SamplingOptions, rules: SamplingRules) -> tuple[int, int]:
    """The choices of a prompt to return, and to generate. Raises InvalidRequest."""
    _check_ranges(options, rules)
    num_returned = _first(options.n, 1)
    num_drawn = _first(options.best_of, num_returned)
    if num_drawn < num_returned:
        remedy = f"must be at least {rules.field('n')}, here {num_returned}; got {num_drawn}"
        raise rules.invalid("best_of", remedy)
    return num_returned, num_drawn


def _first(given: N | None, default: N) -> N:
    return default if given is None else given


def _number(name: str, options: SamplingOptions, rules: SamplingRules) -> Any:
    """The request's value, else the model's default, else Baton's."""
    for source in (options, rules.defaults, BATON_DEFAULTS):
        if (value := getattr(source, name, None)) is not None:
            return value
    raise AssertionError(f"SamplingParams.{name} has no default")


def _check_ranges(options: SamplingOptions, rules: SamplingRules) -> None:
    for name, allowed in RANGES.items():
        value = getattr(options, name)
        if value is not None and value not in allowed:
            got = "a number far beyond that" if is_huge(value) else shown(value)
            raise rules.invalid(name, f"must be {allowed}; got {got}")


def _max_tokens(options: SamplingOptions, rules: SamplingRules, num_prompt: int) -> int:
    room = rules.max_model_len - num_prompt
    if options.max_tokens is None:
        default = rules.defaults.max_new_tokens or rules.default_max_tokens or room
        return min(default, room)
    asked = options.max_tokens
    if asked < 1:
        raise rules.invalid("max_tokens", f"must be at least 1; got {asked}")
    if asked > room:
        name = rules.field("max_tokens")
        raise ContextExceeded(
            f"this model's maximum context length is {rules.max_model_len} tokens, and the request "
            f"wants {num_prompt + asked}: {num_prompt} of prompt and {asked} of output; shorten "
            f"the prompt or lower {name}",
            field=name,
        )
    return asked


def _min_tokens(options: SamplingOptions, rules: SamplingRules, max_tokens: int) -> int:
    min_tokens = options.min_tokens or 0
    if not 0 <= min_tokens <= max_tokens:
        limit = f"between 0 and {rules.field('max_tokens')}, here {max_tokens}"
        raise rules.invalid("min_tokens", f"must be {limit}; got {min_tokens}")
    return min_tokens


def _stop_tokens(options: SamplingOptions, rules: SamplingRules) -> tuple[int, ...]:
    tokens = options.stop_token_ids or ()
    if len(tokens) > MAX_STOP_TOKENS:
        raise rules.invalid("stop_token_ids", f"can have at most {MAX_STOP_TOKENS} tokens")
    return _tokens("stop_token_ids", tokens, rules)


def _tokens(option: str, tokens: Iterable[int] | None, rules: SamplingRules) -> tuple[int, ...]:
    unique = tuple(dict.fromkeys(tokens or ()))
    check_tokens(tuple(tokens or ()), rules.vocab_size, field=rules.field(option))
    return unique


def _logit_bias(options: SamplingOptions, rules: SamplingRules) -> tuple[tuple[int, float], ...]:
    biases = options.logit_bias or {}
    if len(biases) > MAX_BIASES:
        raise rules.invalid("logit_bias", f"can have at most {MAX_BIASES} tokens")
    for token, bias in biases.items():
        if not 0 <= token < rules.vocab_size:
            remedy = f"is no token; ids are below {rules.vocab_size}"
            raise rules.invalid("logit_bias", remedy, token)
        if not -MAX_BIAS <= bias <= MAX_BIAS:
            remedy = f"must be at least {-MAX_BIAS:g} and at most {MAX_BIAS:g}; got {bias:g}"
            raise rules.invalid("logit_bias", remedy, token)
    return tuple(sorted(biases.items()))


def _bad_words(options: SamplingOptions, rules: SamplingRules) -> tuple[tuple[int, ...], ...]:
    """Tokens of each word, at the start of a text and after a space."""
    words = options.bad_words or ()
    if len(words) > MAX_BAD_WORDS:
        raise rules.invalid(
            "bad_words", f"has {len(words)} strings; at most {MAX_BAD_WORDS} can be"
        )
    sequences: dict[tuple[int, ...], None] = {}
    for index, word in enumerate(words):
        bare = word.lstrip()
        if not bare or len(word) > MAX_STOP_CHARS:
            remedy = f"must have 1 to {MAX_STOP_CHARS} characters that are not all spaces"
            raise rules.invalid("bad_words", remedy, index)
        for text in (bare, f" {bare}"):
            sequences[rules.encode(text)] = None
    return tuple(sequences)


def _seed(options: SamplingOptions, rules: SamplingRules) -> int:
    if options.seed is None:
        return secrets.randbits(SEED_BITS)
    if not -(1 << (SEED_BITS - 1)) <= options.seed < 1 << SEED_BITS:
        raise rules.invalid("seed", f"must fit into {SEED_BITS} bits")
    return options.seed % (1 << SEED_BITS)
