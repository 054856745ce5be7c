"""Sampling parameters, constraints on outputs, and the information returned per token."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class GrammarKind(StrEnum):
    JSON_SCHEMA = "json_schema"
    REGEX = "regex"
    LARK = "lark"


@dataclass(frozen=True, slots=True)
class Grammar:
    """A constraint on an output: a sentence of this language, then an end-of-sequence token."""

    kind: GrammarKind
    source: str
    """A JSON schema, a regular expression (Rust's dialect) or a grammar in Lark's notation."""


class FinishReason(StrEnum):
    STOP = "stop"
    """An end-of-sequence token or one of the request's stop tokens; it is the last output token."""
    LENGTH = "length"
    """The request's max_tokens, or the model's context, is used up."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingParams:
    """How the next token is drawn. Every field has its value here; the gateway fills in defaults.

    Transforms apply in this order: repetition, presence and frequency penalties, bias, what may not
    be drawn (minimum length, bad words, allowed tokens, grammar), temperature, top-k, typical-p,
    top-p, min-p. Temperature 0 takes the most probable token that may be drawn.
    """

    temperature: float = 1.0
    top_k: int = 0
    """Keep the k most probable tokens; 0 keeps all."""
    top_p: float = 1.0
    min_p: float = 0.0
    typical_p: float = 1.0
    """Keep the tokens of the most typical information that hold this mass (Meister et al. 2023)."""
    repetition_penalty: float = 1.0
    """Over tokens of prompt and output (Keskar et al. 2019)."""
    presence_penalty: float = 0.0
    """Over output tokens, as OpenAI defines it."""
    frequency_penalty: float = 0.0
    """Over output tokens, as OpenAI defines it."""
    logit_bias: tuple[tuple[int, float], ...] = ()
    """(token, what is added to its logit)."""
    allowed_token_ids: tuple[int, ...] = ()
    """Nothing else is drawn; empty allows all."""
    bad_words: tuple[tuple[int, ...], ...] = ()
    """Token sequences that the output may not contain."""
    grammar: Grammar | None = None
    max_tokens: int = 16
    min_tokens: int = 0
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False
    num_logprobs: int | None = None
    """None: no logprobs. 0: of the sampled token. n: of the n most probable tokens as well."""
    num_prompt_logprobs: int | None = None
    """Like `num_logprobs`, but for the prompt's tokens, except the first."""
    seed: int = 0
    """64 bits. With `choice` and the position it names the random numbers of a token."""
    choice: int = 0
    """Which of a request's parallel completions this is."""


@dataclass(frozen=True, slots=True)
class TokenLogprob:
    token: int
    logprob: float
    """Natural log of the model's probability, before temperature and filters."""
    top: tuple[tuple[int, float], ...] = ()
    """(token, logprob) of the most probable tokens, best first."""
