"""One request on a decode replica, from its arrival to its last token."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass, field, replace

from baton.core.messages import GenerateRequest, PrefillDone, Receipt, TokenUpdate
from baton.core.replicas import ReplicaAddress
from baton.core.sampling import FinishReason, TokenLogprob
from baton.core.tracing import NO_SPAN, Span
from baton.core.wording import count_of
from baton.decode_service.session import GatewaySession
from baton.engine.grammar.matchers import PendingMatcher
from baton.engine.request.request import Request
from baton.kv_transfer.receiving.fetch import TransferReport


@dataclass(slots=True, eq=False)
class Generating:
    message: GenerateRequest
    session: GatewaySession
    arrived_at: float
    block_size: int
    """Tokens per block of this replica's cache."""
    output: list[int] = field(default_factory=list)
    """Tokens of this attempt, in the order they were given to the session."""
    logprobs: list[TokenLogprob] = field(default_factory=list)
    """Logprobs of `output`, if it is to be found again."""
    finish_reason: FinishReason | None = None
    task: asyncio.Task[None] | None = None
    timer: asyncio.TimerHandle | None = None
    matcher: PendingMatcher | None = None
    """The matcher of its grammar, if it has one."""
    request: Request | None = None
    """Set once it is about to be, is, or was in this replica's engine."""
    prefilled_by: ReplicaAddress | None = None
    prefill: PrefillDone | None = None
    num_cached_by_sender: int = 0
    read_ahead: asyncio.Task[None] | None = None
    """Brings in what the tiers hold, from before a prefill replica is asked."""
    is_arriving: bool = False
    """Whether its KV is on its way here, or was, and is worth waiting for."""
    num_taken_over: int = 0
    """Tokens whose KV came along when it moved here."""
    num_pulled: int = 0
    """Tokens whose KV came from another replica's cache."""
    num_lost: int = 0
    """Tokens whose KV did not come, of a prompt whose first token is known."""
    lost_ms: float = 0.0
    """Milliseconds from the opening of that transfer until it was given up."""
    has_left: bool = False
    """Set on the engine's thread: it moved away, and gives out nothing more."""
    num_run: int = 0
    """Tokens this replica's engine ran for it, up to the last of `output`."""
    transfer: TransferReport | None = None
    reported_transfer: TransferReport | None = None
    """The one whose receipt the session was given."""
    first_token_at: float | None = None
    last_token_at: float | None = None
    is_over: bool = False
    span: Span = NO_SPAN
    error: str = ""
    """Why it ended early."""
    notes: list[str] = field(default_factory=list)

    @property
    def engine_id(self) -> str:
        """Attempts overlap for a moment when one fences another: each has an id of its own."""
        return f"{self.message.request_id}#{self.message.attempt}"

    @property
    def about(self) -> dict[str, str]:
        """Request and trace ids for the log."""
        message = self.message
        return {"request_id": message.request_id, "trace_id": message.trace.trace_id}

    @property
    def known_tokens(self) -> tuple[int, ...]:
        return (*self.message.prompt, *self.message.output, *self.output)

    @property
    def num_queued_tokens(self) -> int:
        """Tokens to be computed before the next one can be given out, the prefix cache aside."""
        if self.first_token_at is not None:
            return 1
        return len(self.message.prompt) + len(self.message.output)

    @property
    def is_read_here(self) -> bool:
        """Whether more is read of its prompt than the next token, which only this engine does."""
        message = self.message
        wants_logprobs = message.sampling.num_prompt_logprobs is not None and not message.output
        return message.pooling is not None or wants_logprobs

    async def make_request(self) -> Request:
        """The engine's view of it, with every token known by now.

        Waits for its grammar, and raises InvalidRequest if that cannot be followed.
        """
        output = [*self.message.output, *self.output]
        self.request = Request(
            request_id=self.engine_id,
            prompt=list(self.message.prompt),
            output=output,
            sampling=self.message.sampling,
            salt=self.message.salt,
            adapter=self.message.adapter,
            tenant=self.message.tenant,
            cache_points=self.message.cache_points,
            priority=self.message.priority,
            matcher=None if self.matcher is None else await self.matcher.after(output),
            pooling=self.message.pooling,
        )
        return self.request

    def give_out(self, update: TokenUpdate, now: float, replica_id: str) -> TokenUpdate:
        """Count `update` as sent to the gateway; with a receipt if there is new information for
        it."""
        is_first = self.first_token_at is None
        if is_first:
            self.first_token_at = now
        self.last_token_at = now
        self.output.extend(update.tokens)
        self.finish_reason = update.finish_reason
        if self.message.parking is not None:
            self.logprobs.extend(update.logprobs)
        has_moved = self.transfer is not self.reported_transfer
        self.reported_transfer = self.transfer
        if not (is_first or has_moved or update.is_last):
            return update
        return replace(update, receipt=self.receipt(replica_id))

    def _notes_of_engine(self) -> Iterator[str]:
        if self.request is None:
            return
        yield from self.request.cache_notes
        if num_missing := self.request.num_draft_missing:
            yield (
                f"drafted without {count_of(num_missing, 'token')}, which the head was not shown: "
                "computed by another replica, found in the cache, or while drafting rested"
            )

    def receipt(self, replica_id: str) -> Receipt:
        done, transfer = self.prefill, self.transfer
        return Receipt(
            decode_replica=replica_id,
            adapter=self.message.adapter,
            prefill_replica=self.prefilled_by.replica_id if self.prefilled_by else "",
            prompt_tokens=len(self.message.prompt),
            cached_tokens=self._num_cached(),
            cache_write_tokens=self._num_written(),
            pulled_tokens=self.num_pulled,
            computed_tokens=self.num_run + (done.num_computed if done else 0),
            drafted_tokens=self.request.num_drafted if self.request else 0,
            accepted_tokens=self.request.num_accepted if self.request else 0,
            output_tokens=len(self.output),
            kv_bytes=transfer.num_bytes if transfer else 0,
            transport=transfer.transport if transfer else "",
            queue_ms=done.queue_ms if done else self._local_queue_ms(),
            prefill_ms=done.prefill_ms if done else self._local_prefill_ms(),
            transfer_ms=transfer.transfer_ms if transfer else 0.0,
            decode_ms=self._decode_ms(),
            notes=(*self.notes, *self._notes_of_engine()),
        )

    def end_span(self, now: float, replica_id: str) -> None:
        """Report its span, `now` being on the engine's clock."""
        if not self.span.is_recording:
            return
        request = self.request
        if self.prefill is None and request is not None and request.scheduled_at is not None:
            waited_s = request.scheduled_at - self.arrived_at
            self.span.record("queue", waited_s, ended_ago_s=now - request.scheduled_at)
            if request.first_token_at is not None:
                seconds = request.first_token_at - request.scheduled_at
                self.span.record("prefill", seconds, ended_ago_s=now - request.first_token_at)
        if self.first_token_at is not None and self.last_token_at is not None:
            seconds = self.last_token_at - self.first_token_at
            self.span.record("tokens", seconds, ended_ago_s=now - self.last_token_at)
        receipt = self.receipt(replica_id)
        self.span.set(
            {
                "baton.replica": replica_id,
                "baton.prefill_replica": receipt.prefill_replica,
                "baton.cached_tokens": receipt.cached_tokens,
                "baton.pulled_tokens": receipt.pulled_tokens,
                "baton.output_tokens": receipt.output_tokens,
                "baton.notes": receipt.notes,
            }
        )
        self.span.end(self.error)

    def _num_cached(self) -> int:
        if self.prefill is not None:
            num_cached = self.num_cached_by_sender
        else:
            num_cached = max(self.request.num_cached if self.request else 0, self.num_taken_over)
        return min(num_cached, len(self.message.prompt))

    def _num_written(self) -> int:
        """Before this replica has pinned anything, what is about to be pinned."""
        request, points = self.request, self.message.cache_points
        if request is not None and request.num_computed:
            num_kept = request.num_pinned
        else:
            num_kept = max((point.num_tokens for point in points), default=0)
            num_kept -= num_kept % self.block_size
        return max(0, num_kept - self._num_cached())

    def _local_queue_ms(self) -> float:
        if self.request is None or self.request.scheduled_at is None:
            return 0.0
        return (self.request.scheduled_at - self.arrived_at) * 1e3

    def _local_prefill_ms(self) -> float:
        request = self.request
        if request is None or request.scheduled_at is None or request.first_token_at is None:
            return 0.0
        return (request.first_token_at - request.scheduled_at) * 1e3

    def _decode_ms(self) -> float:
        if self.first_token_at is None or self.last_token_at is None:
            return 0.0
        return (self.last_token_at - self.first_token_at) * 1e3
