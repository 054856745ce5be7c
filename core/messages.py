"""What the gateway, prefill and decode processes say to each other.

Every message is frozen: once sent, it belongs to the receiver. `baton.proto.wire` writes them as
protobuf.

    gateway                decode D                prefill P
      | -- GenerateRequest -> | -- PrefillRequest ---> |
      |                       | <- PrefillGranted ---- |   D reserves blocks, asks for the KV
      |                       | <- PrefillDone ------- |   the first token is known
      | <- TokenUpdate ------ |
      | <- TokenUpdate ------ |                          the last has a finish reason and a Receipt
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from enum import StrEnum

from baton.core.ids import Epoch, ReplicaId, RequestId, TransferId
from baton.core.kv_layout import KvLayout
from baton.core.parking import Parking
from baton.core.step_times import StepTimes


class Role(StrEnum):
    PREFILL = "prefill"
    DECODE = "decode"


class Pooling(StrEnum):
    """How a prompt becomes one vector. Hidden states: after the last norm, before the head."""

    MEAN = "mean"
    """The mean of the hidden states of all tokens."""
    LAST = "last"
    """The last token's."""
    LOGITS = "logits"
    """The last token's logits: of a classifier all labels', in their order; of a model that
    generates those of the `allowed_token_ids`, in theirs."""


class GrammarKind(StrEnum):
    JSON_SCHEMA = "json_schema"
    REGEX = "regex"
    LARK = "lark"


@dataclass(frozen=True, slots=True)
class Grammar:
    """What an output must be: a sentence of this language, then an end-of-sequence token."""

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
    """The same, of the prompt's tokens but the first."""
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


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaAddress:
    """Where a replica's gRPC server listens, and which incarnation of it is meant."""

    replica_id: ReplicaId
    epoch: Epoch
    address: str
    """host:port"""


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
    """Keeps the KV blocks of one tenant from being shared with another."""
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
    traceparent: str = ""
    """The span of the attempt; empty: nobody collects any."""
    parking: Parking | None = None
    """Set: D remembers for a moment what became of it, for another gateway."""
    time_left_ms: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ParkedStream:
    """D -> another gateway: as far as a stream had come."""

    request: GenerateRequest
    """With all output so far."""
    logprobs: tuple[TokenLogprob, ...] = ()
    """Of that output, if any were asked for."""
    finish_reason: FinishReason | None = None
    """None: it was not at its end."""
    receipt: Receipt = field(default_factory=lambda: Receipt())
    """Of this replica's part in it."""


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
    priority: int = 0
    tenant: str = ""
    cache_points: tuple[CachePoint, ...] = ()
    source: ReplicaAddress | None = None
    """A replica that holds KV of more of the prompt than P: pulled, as far as that pays."""
    gateway_epoch: Epoch | None = None
    """The gateway whose credit it uses."""
    traceparent: str = ""
    """The span of the call; empty: nobody collects any."""
    wants_progress: bool = False
    """Whether `PrefillProgress` is to be told."""
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Receipt:
    """What a request used. Times are milliseconds; tokens are counted, never estimated.

    On the wire from D it covers one attempt; the gateway adds attempts up.
    """

    decode_replica: str = ""
    prefill_replica: str = ""
    """Empty when the prompt was computed by the decode replica."""
    placement: str = ""
    """Why the request ran where it ran, in words."""
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
    """Those of them that were right: they are output, and among the computed ones."""
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
    """What did not go as planned: a refused or lost prefill, a corrupt piece, another attempt."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenUpdate:
    """D -> gateway: what happened to one request since the last update.

    Exactly one update of an attempt is last: the one with a finish reason or an error.
    """

    request_id: RequestId
    attempt: int
    tokens: tuple[int, ...] = ()
    logprobs: tuple[TokenLogprob, ...] = ()
    """As many as tokens when asked for, else none."""
    prompt_logprobs: tuple[TokenLogprob, ...] = ()
    """In the first update when asked for: one for each token of the prompt but the first."""
    embedding: tuple[float, ...] = ()
    """In the only update of a request with `pooling`, whose finish reason is STOP."""
    finish_reason: FinishReason | None = None
    receipt: Receipt | None = None
    error: Exception | None = None

    @property
    def is_last(self) -> bool:
        return self.finish_reason is not None or self.error is not None

    def and_then(self, later: TokenUpdate) -> TokenUpdate:
        """Both as one, of the same attempt, for a receiver who has heard of neither.

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


@dataclass(frozen=True, slots=True, kw_only=True)
class Demand:
    """Gateway -> replica: what waits at the gateway for any replica of this role."""

    num_requests: int = 0
    num_tokens: int = 0
    """Tokens of them that a prefill replica would have to compute."""
    credit_id: int = 0
    """The credit that the gateway goes by; what it sent before, it sent by an earlier one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Capacity:
    """Replica -> gateway: how full it is, how fast, and how much this gateway may send."""

    max_open: int = 0
    """Decode: requests this gateway may have open on the replica."""
    credit_tokens: int = 0
    """Prefill: tokens this gateway may have placed there whose first token has not come: those it
    is lent, and those of such prompts that are computed already."""
    credit_id: int = 0
    """Of these two: which credit they are; a higher one came later."""
    num_running: int = 0
    num_waiting: int = 0
    num_queued_tokens: int = 0
    """Tokens known but not yet computed."""
    num_context_tokens: int = 0
    """Tokens of context that a step of those who decode reads, all together."""
    num_blocks: int = 0
    num_free_blocks: int = 0
    """Free or merely cached."""
    is_draining: bool = False
    """Place nothing more; what runs is to move elsewhere."""
    slowness: float = 1.0
    """How many times what `step_times` says recent steps took."""
    step_times: StepTimes | None = None
    """None: as last said."""

    @property
    def is_sound(self) -> bool:
        """Whether what it says of its speed can be at all."""
        is_slowness = math.isfinite(self.slowness) and self.slowness >= 0
        return is_slowness and (self.step_times is None or self.step_times.is_sound)


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaInfo:
    """What a replica registers about itself. But for its readiness, constant for an incarnation; in
    another role it is another incarnation."""

    replica_id: ReplicaId
    epoch: Epoch
    role: Role
    address: str
    layout: KvLayout
    num_blocks: int
    max_model_len: int
    """Tokens of prompt and output together."""
    max_open: int
    """Requests the replica takes at once, from all gateways together."""
    max_queued_tokens: int
    """Prefill only: more queued tokens than these are refused."""
    max_chunk: int
    """Tokens of one prompt in one pass, at most."""
    model: str = ""
    """What its tokens are those of. While a deployment is updated there may be two."""
    is_ready: bool = True
    is_flipped: bool = False
    """It was started in the other role."""

    @property
    def endpoint(self) -> ReplicaAddress:
        return ReplicaAddress(replica_id=self.replica_id, epoch=self.epoch, address=self.address)


@dataclass(frozen=True, slots=True, kw_only=True)
class StartingReplica:
    """A replica that does not serve yet, for those who wait for it."""

    replica_id: ReplicaId
    role: Role
    stage: str
    """What it does: `loading weights`."""
    fraction: float | None = None
    """How much of that is done, where it can be told."""
    failure: str = ""
    """Why it gave up; then it ends."""
    is_final: bool = False
    """Starting it anew would fail in the same way."""
    stage_s: float = 0.0
    """For how long it has been at this stage, by the registry's clock."""
    is_flipped: bool = False
    """It was started in the other role, and takes this one."""

    def at(self, stage: str, fraction: float | None = None) -> StartingReplica:
        return replace(self, stage=stage, fraction=fraction)

    def failed(self, failure: str, *, is_final: bool) -> StartingReplica:
        return replace(self, failure=failure, is_final=is_final)


HEARTBEAT_S = 1.0
"""How often replicas tell the registry that they are there."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Membership:
    """The registry's view at one moment. A hint: liveness is the stream itself.

    A new incarnation of the registry starts empty; its first snapshots remove nothing from a
    gateway's view until the replicas had time to register again.
    """

    incarnation: Epoch
    version: int
    age_s: float
    """Seconds since this incarnation began."""
    replicas: tuple[ReplicaInfo, ...]
    starting: tuple[StartingReplica, ...] = ()
    left: tuple[Epoch, ...] = ()
    """Who said farewell lately: of all others that are missing, nothing was heard for a while."""
