"""What the server answers, as frozen values."""

from __future__ import annotations

from dataclasses import dataclass

from baton.proto import inference_pb2 as pb


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
    """Of the prompt, found in a prefix cache."""
    output_tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Receipt:
    """Where the request ran and what it cost; times in milliseconds."""

    decode_replica: str
    prefill_replica: str
    """Empty: the decode replica computed the prompt itself."""
    placement: str
    """Why it ran there."""
    attempts: int
    computed_tokens: int
    kv_bytes: int
    transport: str
    queue_ms: float
    prefill_ms: float
    transfer_ms: float
    decode_ms: float
    notes: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Delta:
    """What has been generated since the last one."""

    request_id: str
    model: str
    text: str
    """Never part of a character."""
    token_ids: tuple[int, ...]
    """Empty unless asked for with `return_token_ids`."""
    logprobs: tuple[TokenLogprob, ...]
    finish_reason: str | None
    """"stop" or "length" in the last delta, which alone has usage and receipt."""
    usage: Usage | None
    receipt: Receipt | None


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerationResult:
    request_id: str
    model: str
    text: str
    token_ids: tuple[int, ...]
    """Empty unless asked for with `return_token_ids`."""
    logprobs: tuple[TokenLogprob, ...]
    finish_reason: str
    """"stop" or "length"."""
    usage: Usage
    receipt: Receipt


@dataclass(frozen=True, slots=True, kw_only=True)
class Model:
    id: str
    created: int
    """Unix seconds."""
    max_model_len: int
    """Tokens of prompt and output together."""


def delta_from(response: pb.GenerateResponse) -> Delta:
    return Delta(
        request_id=response.request_id,
        model=response.model,
        text=response.text,
        token_ids=tuple(response.token_ids),
        logprobs=tuple(map(_logprob_from, response.logprobs)),
        finish_reason=response.finish_reason or None,
        usage=_usage_from(response.usage) if response.HasField("usage") else None,
        receipt=_receipt_from(response.receipt) if response.HasField("receipt") else None,
    )


def model_from(model: pb.Model) -> Model:
    return Model(id=model.id, created=model.created, max_model_len=model.max_model_len)


def _logprob_from(entry: pb.TokenLogprob) -> TokenLogprob:
    top = tuple(TopLogprob(t.token_id, t.token, t.logprob) for t in entry.top)
    return TokenLogprob(entry.token_id, entry.token, entry.logprob, top)


def _usage_from(usage: pb.Usage) -> Usage:
    return Usage(
        prompt_tokens=usage.prompt_tokens,
        cached_tokens=usage.cached_tokens,
        output_tokens=usage.output_tokens,
    )


def _receipt_from(receipt: pb.Receipt) -> Receipt:
    values = {name: getattr(receipt, name) for name in Receipt.__dataclass_fields__}
    return Receipt(**{**values, "notes": tuple(receipt.notes)})
