"""Messages between the gateway, prefill and decode processes.

Every message is frozen: once sent, it belongs to the receiver. `baton.proto`'s `*_wire` modules
write them as protobuf.

    gateway                decode D                prefill P
      | -- GenerateRequest -> | -- PrefillRequest ---> |
      |                       | <- PrefillGranted ---- |   D reserves blocks, asks for the KV
      |                       | <- PrefillDone ------- |   the first token is known
      | <- TokenUpdate ------ |
      | <- TokenUpdate ------ |                          the last has a finish reason and a Receipt
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

from baton.core.ids import Epoch, RequestId, TransferId
from baton.core.kv_layout import KvLayout
from baton.core.parking import Parking
from baton.core.replicas import ReplicaAddress
from baton.core.sampling import FinishReason, SamplingParams, TokenLogprob
from baton.core.tracing import NO_CONTEXT, TraceContext


class Pooling(StrEnum):
    """How the hidden states of a prompt, after the last norm and before the head, become one
    vector."""

    MEAN = "mean"
    """The mean of the hidden states of all tokens."""
    LAST = "last"
    """The last token's."""
    LOGITS = "logits"
    """The last token's logits: of a classifier all labels', in their order; of a model that
    generates those of the `allowed_token_ids`, in theirs."""


@dataclass(frozen=True, slots=True)
class CachePoint:
    """The first `num_tokens` of a prompt are to stay in the prefix cache for `ttl_s`."""

    num_tokens: int
    ttl_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerateRequest:
    """Gateway -> D: continue `prompt + output`.

    `(request_id, attempt)` makes it idempotent; a higher attempt fences a lower one. `output` holds
    what earlier attempts have already given the client: it is never sampled again, and `sampling`
    (its max_tokens, penalties and positions) counts it as output.
    """

    request_id: RequestId
    attempt: int
    prompt: tuple[int, ...]
    output: tuple[int, ...] = ()
    sampling: SamplingParams = field(default_factory=SamplingParams)
    salt: bytes = b""
    """Keeps the KV blocks of one tenant, or adapter, from being shared with another."""
    adapter: str = ""
    """The LoRA adapter that the model computes it with; empty: the model alone."""
    prefill: tuple[ReplicaAddress, ...] = ()
    """Prefill replicas to ask, best first. Empty: computed by D itself."""
    priority: int = 0
    """Smaller comes first, and is preempted last."""
    pooling: Pooling | None = None
    """Set: nothing is generated, the answer is a vector that the prompt becomes."""
    tenant: str = ""
    """On whose account its blocks are."""
    cache_points: tuple[CachePoint, ...] = ()
    source: ReplicaAddress | None = None
    """A replica that holds KV of more of the prompt than D: pulled, as far as that pays."""
    is_moving: bool = False
    """The request runs on `source` at this moment, and is to leave it."""
    trace: TraceContext = NO_CONTEXT
    """The span of the attempt."""
    parking: Parking | None = None
    """Set: D remembers for a moment what became of it, for another gateway."""
    time_left_ms: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ParkedStream:
    """D -> another gateway: as far as a stream had come."""

    request: GenerateRequest
    """The request as it was taken, with all output so far."""
    logprobs: tuple[TokenLogprob, ...] = ()
    """Logprobs of that output, if any were asked for."""
    finish_reason: FinishReason | None = None
    """None: it was not at its end."""
    receipt: Receipt = field(default_factory=lambda: Receipt())
    """The receipt for this replica's part of the request."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PrefillRequest:
    """D -> P: compute the KV of `prompt + output` and sample one token."""

    request_id: RequestId
    transfer_id: TransferId
    receiver_epoch: Epoch
    layout: KvLayout
    """The receiver's; P refuses if its own differs."""
    prompt: tuple[int, ...]
    output: tuple[int, ...] = ()
    sampling: SamplingParams = field(default_factory=SamplingParams)
    salt: bytes = b""
    adapter: str = ""
    """See `GenerateRequest`."""
    priority: int = 0
    tenant: str = ""
    cache_points: tuple[CachePoint, ...] = ()
    source: ReplicaAddress | None = None
    """A replica that holds KV of more of the prompt than P: pulled, as far as that pays."""
    gateway_epoch: Epoch | None = None
    """The gateway whose credit it uses."""
    trace: TraceContext = NO_CONTEXT
    """The span of the call."""
    wants_progress: bool = False
    """Whether to send `PrefillProgress`."""
    joins_progress: bool = False
    """Whether a grant that comes at once may stand for the progress before it."""
    time_left_ms: int


@dataclass(frozen=True, slots=True)
class PrefillProgress:
    """P -> D: the engine advances, though this prompt's turn, or its end, has yet to come."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PrefillGranted:
    """P -> D: the prompt's turn has come; reserve blocks and open the transfer.

    P keeps its references until D has sealed the transfer or either side aborts it.
    """

    transfer_id: TransferId
    sender_epoch: Epoch
    layout: KvLayout
    """The sender's."""
    num_tokens: int
    num_cached: int
    """Tokens that P need not compute."""
    head_runs: tuple[range, ...] = ()
    """See `KvPool.head_runs`, of the sender."""
    tells_progress: bool = False
    """Whether progress is reported from now on, if wanted; older replicas just report it."""

    def __post_init__(self) -> None:
        if not 0 <= self.num_cached < self.num_tokens:
            raise ValueError(f"{self.transfer_id}: {self.num_cached} cached of {self.num_tokens}")


@dataclass(frozen=True, slots=True, kw_only=True)
class PrefillDone:
    """P -> D: the first token. Final once D has recorded it, whatever becomes of the KV.

    Whether it is the last is for D to say: P's context may be shorter, or longer.
    """

    transfer_id: TransferId
    token: int
    logprob: TokenLogprob | None
    queue_ms: float
    prefill_ms: float
    num_computed: int
    """Prompt tokens that P computed, including those computed again after a preemption."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PullRequest:
    """Any replica -> any other: offer me the KV you hold of the beginning of `tokens`."""

    transfer_id: TransferId
    receiver_epoch: Epoch
    layout: KvLayout
    """The receiver's."""
    tokens: tuple[int, ...]
    salt: bytes = b""
    num_held: int = 0
    """Tokens that the receiver has already."""
    request_id: RequestId | None = None
    """Set: this request of the peer moves away, and stops there."""
    attempt: int = 0
    """The attempt of it that stops, or an earlier one."""
    tenant: str = ""
    """The tenant whose tokens they are."""
    time_left_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PullOffered:
    """The answer: open the transfer. The peer keeps the blocks until it is settled."""

    transfer_id: TransferId
    sender_epoch: Epoch
    layout: KvLayout
    """The sender's."""
    num_tokens: int
    """From the first of `tokens` on; more than `num_held`."""
    head_runs: tuple[range, ...] = ()
    """See `KvPool.head_runs`, of the sender."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Receipt:
    """The resources that a request used. Times are milliseconds; tokens are counted, never
    estimated.

    From D it covers one attempt; the gateway adds up attempts.
    """

    decode_replica: str = ""
    prefill_replica: str = ""
    """Empty when the prompt was computed by the decode replica."""
    placement: str = ""
    """Why the request ran where it ran, in words."""
    adapter: str = ""
    """The LoRA adapter that it was computed with; empty: the model alone."""
    attempts: int = 1
    prompt_tokens: int = 0
    cached_tokens: int = 0
    """Prompt tokens taken from a prefix cache, on whichever replica answered for the prompt."""
    cache_write_tokens: int = 0
    """Prompt tokens before a cache point that were not in the cache, and now stay there."""
    pulled_tokens: int = 0
    """Tokens whose KV came from another replica's cache or a tier instead of being computed."""
    computed_tokens: int = 0
    """Tokens run through the model, prompt and output, on all replicas, over all attempts."""
    drafted_tokens: int = 0
    """Tokens guessed and run through the model besides, to be verified."""
    accepted_tokens: int = 0
    """Drafted tokens that were accepted: they are output, and among the computed ones."""
    output_tokens: int = 0
    kv_bytes: int = 0
    """Bytes of KV that travelled."""
    transport: str = ""
    queue_ms: float = 0.0
    prefill_ms: float = 0.0
    transfer_ms: float = 0.0
    """From the opening of the transfer until its seal."""
    decode_ms: float = 0.0
    """From the first token to the last."""
    notes: tuple[str, ...] = ()
    """Unplanned events: a refused or lost prefill, a corrupt piece, another attempt."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenUpdate:
    """D -> gateway: what happened to one request since the last update.

    Exactly one update of an attempt is last: the one with a finish reason or an error.
    """

    request_id: RequestId
    attempt: int
    tokens: tuple[int, ...] = ()
    logprobs: tuple[TokenLogprob, ...] = ()
    """One per token if requested, else none."""
    prompt_logprobs: tuple[TokenLogprob, ...] = ()
    """Prompt logprobs, in the first update when asked for: one for each prompt token but the
    first."""
    embedding: tuple[float, ...] = ()
    """The pooled vector, in the only update of a request with `pooling`; its finish reason is
    STOP."""
    finish_reason: FinishReason | None = None
    receipt: Receipt | None = None
    error: Exception | None = None

    @property
    def is_last(self) -> bool:
        return self.finish_reason is not None or self.error is not None

    def and_then(self, later: TokenUpdate) -> TokenUpdate:
        """Both as one, of the same attempt, for a receiver that has got neither.

        Not for an error: the tokens before it are to be given out first.
        """
        return TokenUpdate(
            request_id=self.request_id,
            attempt=self.attempt,
            tokens=self.tokens + later.tokens,
            logprobs=self.logprobs + later.logprobs,
            prompt_logprobs=self.prompt_logprobs or later.prompt_logprobs,
            embedding=self.embedding or later.embedding,
            finish_reason=later.finish_reason,
            receipt=later.receipt or self.receipt,
        )
