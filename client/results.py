"""The server's answers, as frozen values.

    stream      Delta, Delta, ...          ChatDelta, ChatDelta, ...
    in one      GenerationResult           ChatResult
                  choices: Choice            choices: ChatChoice -> AssistantMessage -> ToolCall

Deltas of several choices are interleaved; `index` is the choice. The shortcuts of a result (`text`,
`receipt`, ...) are its first choice's.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class TopLogprob:
    token_id: int
    token: bytes
    logprob: float


@dataclass(frozen=True, slots=True)
class TokenLogprob:
    token_id: int
    token: bytes
    """Its bytes; one token may be part of a character."""
    logprob: float
    """Natural log of the model's probability, before temperature and filters."""
    top: tuple[TopLogprob, ...]
    """The most probable tokens, best first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    prompt_tokens: int
    cached_tokens: int
    """Tokens of the prompt found in a prefix cache."""
    cache_write_tokens: int
    """Tokens of the prompt before a cache point and not cached until now."""
    output_tokens: int
    reasoning_tokens: int
    """Tokens of the output that are reasoning."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Receipt:
    """Where a choice ran and what it cost; times in milliseconds."""

    decode_replica: str
    prefill_replica: str
    """Empty: the decode replica computed the prompt itself."""
    placement: str
    """The reason for its placement."""
    adapter: str
    """The LoRA adapter that it was computed with; empty: the model alone."""
    attempts: int
    cached_tokens: int
    """Tokens of the prompt found in a prefix cache."""
    cache_write_tokens: int
    """Tokens of the prompt before a cache point and not cached until now."""
    pulled_tokens: int
    """Tokens whose KV came from another replica's cache or a tier."""
    computed_tokens: int
    drafted_tokens: int
    """Draft tokens that were verified."""
    accepted_tokens: int
    """Drafted tokens that were accepted."""
    kv_bytes: int
    transport: str
    queue_ms: float
    prefill_ms: float
    transfer_ms: float
    decode_ms: float
    notes: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptProgress:
    """The progress of a prompt."""

    state: str
    """"queued": it has no place; "starting": replicas start for it; "in_line": for a prefill
    replica; "computed": one has it."""
    position: int
    """The number of requests before it."""
    total: int
    """Prompt tokens."""
    cache: int
    """Prompt tokens found in a cache, once that is known."""
    processed: int
    """Prompt tokens cached or computed by now, by prediction."""
    time_ms: float
    """Milliseconds since it was asked for."""
    eta_ms: float
    """Milliseconds until its first token, by prediction."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Delta:
    """What has been generated of one choice since its last delta."""

    request_id: str
    model: str
    index: int
    """The choice's number, from 0."""
    text: str
    """The new text, whole characters only."""
    token_ids: tuple[int, ...]
    """Empty unless asked for with `return_token_ids`."""
    logprobs: tuple[TokenLogprob, ...]
    prompt_token_ids: tuple[int, ...]
    """Token ids of the prompt, in the first delta of its first choice, if asked for."""
    prompt_logprobs: tuple[TokenLogprob, ...]
    """Logprobs of the prompt's tokens, in the same delta, if asked for."""
    finish_reason: str | None
    """"stop" or "length" in a choice's last delta, which alone has a receipt."""
    receipt: Receipt | None
    usage: Usage | None
    """Token counts of the whole request, in the last delta of all."""
    prompt_progress: PromptProgress | None
    """The prompt's progress, in a delta of its own before the first token, if asked for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolCallDelta:
    index: int
    """The call's number within its choice, from 0."""
    id: str
    """The call's id, in its first delta."""
    name: str
    """The function's name, in the call's first delta."""
    arguments: str
    """The part of the arguments that came since the last delta."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatDelta:
    """What has been generated of one choice since its last delta."""

    request_id: str
    model: str
    index: int
    """The choice's number, from 0."""
    text: str
    """A part of the message's content; never part of a character."""
    reasoning: str
    tool_calls: tuple[ToolCallDelta, ...]
    token_ids: tuple[int, ...]
    """Empty unless asked for with `return_token_ids`."""
    logprobs: tuple[TokenLogprob, ...]
    prompt_token_ids: tuple[int, ...]
    """Token ids of the prompt, in the first delta of the first choice, if asked for."""
    prompt_logprobs: tuple[TokenLogprob, ...]
    """Logprobs of the prompt's tokens, in the same delta, if asked for."""
    finish_reason: str | None
    """"stop", "length" or "tool_calls" in a choice's last delta, which alone has a receipt."""
    receipt: Receipt | None
    usage: Usage | None
    """Token counts of the whole request, in the last delta of all."""
    prompt_progress: PromptProgress | None
    """The prompt's progress, in a delta of its own before the first token, if asked for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    index: int
    text: str
    token_ids: tuple[int, ...]
    """Empty unless asked for with `return_token_ids`."""
    logprobs: tuple[TokenLogprob, ...]
    prompt_token_ids: tuple[int, ...]
    """Only a prompt's first choice has them, if asked for."""
    prompt_logprobs: tuple[TokenLogprob, ...]
    """Logprobs of the prompt's tokens; only a prompt's first choice has them, if asked for."""
    finish_reason: str
    """"stop" or "length"."""
    receipt: Receipt


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerationResult:
    request_id: str
    model: str
    choices: tuple[Choice, ...]
    """The choices in order: with several prompts, choice i belongs to prompt i // n."""
    usage: Usage
    """The tokens of all choices together."""

    @property
    def text(self) -> str:
        return self.choices[0].text

    @property
    def token_ids(self) -> tuple[int, ...]:
        return self.choices[0].token_ids

    @property
    def logprobs(self) -> tuple[TokenLogprob, ...]:
        return self.choices[0].logprobs

    @property
    def finish_reason(self) -> str:
        return self.choices[0].finish_reason

    @property
    def receipt(self) -> Receipt:
        return self.choices[0].receipt


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolCall:
    id: str
    name: str
    arguments: str
    """JSON, as the model wrote it."""

    def parse(self) -> Any:
        """The arguments as values. Raises json.JSONDecodeError: models make mistakes."""
        return json.loads(self.arguments or "{}")


@dataclass(frozen=True, slots=True, kw_only=True)
class AssistantMessage:
    """The assistant's message, which can be used in the next request's messages."""

    content: str
    reasoning: str
    tool_calls: tuple[ToolCall, ...]

    def as_dict(self) -> dict[str, Any]:
        calls = [{"id": c.id, "name": c.name, "arguments": c.arguments} for c in self.tool_calls]
        return {
            "role": "assistant",
            "content": self.content,
            "reasoning": self.reasoning,
            "tool_calls": calls,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatChoice:
    index: int
    message: AssistantMessage
    token_ids: tuple[int, ...]
    """Empty unless asked for with `return_token_ids`."""
    logprobs: tuple[TokenLogprob, ...]
    prompt_token_ids: tuple[int, ...]
    """Only the first choice has them, if asked for."""
    prompt_logprobs: tuple[TokenLogprob, ...]
    """Logprobs of the prompt's tokens; only the first choice has them, if asked for."""
    finish_reason: str
    """"stop", "length" or "tool_calls"."""
    receipt: Receipt


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatResult:
    request_id: str
    model: str
    choices: tuple[ChatChoice, ...]
    usage: Usage
    """The tokens of all choices together."""

    @property
    def message(self) -> AssistantMessage:
        return self.choices[0].message

    @property
    def text(self) -> str:
        return self.message.content

    @property
    def reasoning(self) -> str:
        return self.message.reasoning

    @property
    def tool_calls(self) -> tuple[ToolCall, ...]:
        return self.message.tool_calls

    @property
    def finish_reason(self) -> str:
        return self.choices[0].finish_reason

    @property
    def receipt(self) -> Receipt:
        return self.choices[0].receipt


@dataclass(frozen=True, slots=True, kw_only=True)
class Tokens:
    ids: tuple[int, ...]
    tokens: tuple[bytes, ...]
    """The bytes of each."""
    max_model_len: int
    """Tokens of prompt and output together."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EmbeddingResult:
    request_id: str
    model: str
    embeddings: tuple[tuple[float, ...], ...]
    """One vector for each input, in the order of the inputs."""
    usage: Usage

    @property
    def embedding(self) -> tuple[float, ...]:
        """The vector of the first input."""
        return self.embeddings[0]


@dataclass(frozen=True, slots=True, kw_only=True)
class Interval:
    """An interval of seconds that should hold 90 % of outcomes."""

    low: float
    middle: float
    high: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """Predictions for a request that would arrive now."""

    prompt_tokens: int
    cached_tokens: int
    """Prompt tokens in the cache of the replica that would compute the prompt."""
    computed_tokens: int
    """Prompt tokens that would be computed."""
    max_output_tokens: int
    prefill_replica: str
    """The replica that would compute the prompt; it may be the decode replica."""
    decode_replica: str
    wait_s: float
    """Seconds until the prompt's turn."""
    prefill_s: float
    """Seconds to compute the prompt."""
    ttft_s: Interval
    """Time to first token."""
    itl_s: Interval | None
    """Time between output tokens; None while unknown."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Model:
    id: str
    created: int
    """Unix seconds."""
    max_model_len: int
    """Tokens of prompt and output together."""
    root: str = ""
    """The model's own name; of a LoRA adapter its folder, id or URL."""
    parent: str = ""
    """The model that an adapter adapts; empty for the model itself."""
