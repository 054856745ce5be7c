"""One model on one group of devices: requests in, tokens out, one step at a time.

    schedule -> forward -> pool prompts or sample tokens -> finish requests
                 layer, on_layer, between_layers, layer, ...

The services take part in a step through the hooks that they pass in: see `baton.engine.step_hooks`.
The previous step may already have launched a decode pass: see
`baton.engine.schedule.async_scheduling`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from torch import Tensor

from baton.core.clock import Clock, monotonic
from baton.core.errors import InvalidRequest
from baton.core.kv_pool import Holder
from baton.core.sampling import FinishReason
from baton.engine.batch.batch import Chunk, ignore_layer
from baton.engine.blocks.block_pool import BlockPool
from baton.engine.config import EngineConfig
from baton.engine.grammar.grammar import GrammarCompiler
from baton.engine.passes.runner import Runner
from baton.engine.passes.scoring import Scored, scored, scored_by
from baton.engine.request.answers import Answers
from baton.engine.request.cache_points import pin_computed
from baton.engine.request.prompt_reading import read_prompts
from baton.engine.request.request import Phase, Request, ending_of, finish_reason
from baton.engine.request.request_check import check_request
from baton.engine.request.step_report import EngineStats, RequestOutput, StepReport
from baton.engine.sampling.sampling_plan import SamplingPlan
from baton.engine.schedule.async_scheduling import PassesInFlight, is_async
from baton.engine.schedule.drafted_chunks import Drafts, ScheduledChunk
from baton.engine.schedule.persistent_batch import PersistentBatch
from baton.engine.schedule.scheduler import Scheduler
from baton.engine.schedule.step_fit import work_of
from baton.engine.speculation.draft_turn import DraftTurn
from baton.engine.speculation.draws import Draws
from baton.engine.speculation.feature_plane import FeaturePlane
from baton.engine.speculation.speculation import Speculation
from baton.engine.step_hooks import ALONE, StepHooks


class Lockstep(Protocol):
    """Engines which compute their passes together."""

    @property
    def tick_s(self) -> float:
        """Seconds that an engine without work may keep the others waiting."""

    def join_pass(self) -> bool:
        """Join a pass of others, with nothing of one's own. False if there is none."""


class Engine:
    """Not thread-safe: see `baton.engine.engine_thread`."""

    def __init__(
        self,
        runner: Runner,
        config: EngineConfig,
        *,
        clock: Clock = monotonic,
        grammars: GrammarCompiler | None = None,
        lockstep: Lockstep | None = None,
        speculation: Speculation | None = None,
    ) -> None:
        block_size = runner.cache.layout.block_size
        if block_size != config.cache.block_size:
            raise ValueError(f"cache of {block_size=}, configured is {config.cache.block_size}")
        self.runner = runner
        self.info = runner.info
        self.clock = clock
        self.grammars = grammars
        """Grammar compiler for the tokens of this model; None if it cannot follow a grammar."""
        self.lockstep = lockstep
        """Must be joined whenever a step computes nothing; None for an engine on its own."""
        self.speculation = speculation
        """Drafts tokens for decoding requests; None: one token a pass."""
        self.stats = EngineStats()
        self.pool = BlockPool(
            runner.cache,
            prefix_caching=config.cache.prefix_caching,
            pinned_fraction=config.cache.pinned_fraction,
            kv_shares=config.kv_shares,
            clock=clock,
        )
        self.huge = runner.cache.huge if config.cache.huge_pages == "auto" else None
        """Moves blocks onto huge pages, once the owner of the engine starts it."""
        self.features = FeaturePlane.of(runner.cache, self.pool)
        """Features that draft heads read, kept in the blocks for later readers."""
        self._turn = DraftTurn(self.features, self._now)
        self.max_model_len = min(
            self.info.max_model_len,
            self.pool.num_blocks * block_size,
            config.scheduler.max_model_len or self.info.max_model_len,
        )
        self.max_chunk = config.scheduler.max_chunk
        self._scheduler = Scheduler(self.pool, config.scheduler, num_open=runner.cache.num_open)
        self._in_flight = PassesInFlight(
            self._scheduler,
            self.info.eos_token_ids,
            is_on=is_async(config.scheduler.async_scheduling, runner),
        )
        self._answers = Answers(
            clock=clock,
            dtype=self.info.dtype,
            finish_reason=self.finish_reason,
            accepted=self._count_computed,
            leave=self._leave,
            discard=self._discard,
        )
        self._draws = Draws(
            self._answers,
            self.pool,
            self.info.eos_token_ids,
            self._now,
            redraws=config.speculation.acceptance == "published",
        )
        self._request_by_id: dict[str, Request] = {}

    @property
    def has_work(self) -> bool:
        return bool(self._request_by_id)

    @property
    def num_running(self) -> int:
        return self._scheduler.num_running

    @property
    def num_waiting(self) -> int:
        return self._scheduler.num_waiting

    @property
    def is_starving(self) -> bool:
        """Whether adopting requests now would keep a waiting one from ever getting its blocks."""
        return self._scheduler.is_starving

    @property
    def num_queued_tokens(self) -> int:
        """Tokens known but not yet computed."""
        return sum(request.num_pending for request in self._request_by_id.values())

    @property
    def request_ids(self) -> frozenset[str]:
        """The ids of the unfinished requests, for the auditor."""
        return frozenset(self._request_by_id)

    def request(self, request_id: str) -> Request | None:
        """An unfinished request; None if there is none of that id."""
        return self._request_by_id.get(request_id)

    def add(self, request: Request) -> None:
        """Queue a request. Raises InvalidRequest if it can never run."""
        self._check(request)
        self._enter(request)

    def adopt(self, request: Request, lease: Holder) -> None:
        """Take in a request whose known tokens, all but the last, are computed in `lease`'s blocks.

        The blocks become the request's; tokens in one that was to be quantised when it is full are
        computed again. Raises InvalidRequest as `add` does, ValueError if the lease is too short;
        it then keeps its blocks.
        """
        self._check(request)
        num_computed = len(request.tokens) - 1
        num_needed = self.pool.layout.num_blocks_for(num_computed)
        if not 0 < num_needed <= len(self.pool.table(lease)):
            raise ValueError(f"{lease} has no blocks for {num_computed} computed tokens")
        num_computed = self.pool.layout.num_lasting(num_computed)
        if not num_computed:
            self.pool.release(lease)
            self._enter(request)
            return
        self.pool.hand_over(lease, request.holder)
        request.num_computed = num_computed
        self.pool.commit(request.holder, request.tokens, num_computed, request.salt)
        pin_computed(request, self.pool)
        self._enter(request)

    def abort(self, request_id: str) -> Request | None:
        """Drop a request and free its blocks at once; None if there is no such request."""
        request = self._request_by_id.get(request_id)
        if request is not None:
            self._leave(request)
            self.stats.num_aborted += 1
        return request

    def synchronize(self) -> None:
        """Wait until nothing is computed: until the next step no block of a request is written."""
        self._in_flight.synchronize()

    def step(self, hooks: StepHooks = ALONE) -> StepReport:
        """Run one forward pass over the chunks that the scheduler chooses, if any."""
        started_at, num_preempted = self.clock(), self._scheduler.num_preempted
        turn, is_in_flight = self._turn, self._in_flight.persistent_batch is not None
        drafts = turn.begin(self.speculation, self._scheduler, is_in_flight=is_in_flight)
        drafted_at = self.clock()
        chunks, first_scheduled = self._schedule(drafted_at, drafts, hooks)
        scheduled_at = self.clock()
        batch = self._in_flight.persistent_batch or self._scheduler.persistent_batch
        work = work_of(chunks, batch)
        if batch is not None and self._may_launch(batch):
            self._in_flight.launch(batch, self.runner, launch_next=self._may_launch_next)
            forwarded_at = self.clock()
            outputs = self._read(batch, chunks, hooks)
        else:
            logits = self._forward(chunks, batch, hooks) if chunks else None
            forwarded_at = self.clock()
            outputs = self._draws.outputs(chunks, logits, batch, self.speculation)
        if batch is None:
            outputs = self._embed(chunks) + outputs
        sampled_at = self.clock()
        report = StepReport(
            outputs=outputs,
            first_scheduled=first_scheduled,
            num_tokens=sum([chunk.num_tokens for chunk in chunks]),
            num_requests=len(chunks),
            num_drafted=sum([len(chunk.drafted) for chunk in chunks]) if drafts else 0,
            num_accepted=sum([max(0, len(one.tokens) - 1) for one in outputs]) if drafts else 0,
            work=work,
            num_preempted=self._scheduler.num_preempted - num_preempted,
            num_running=self.num_running,
            num_waiting=self.num_waiting,
            num_blocks_in_use=self.pool.num_in_use,
            recall_ms=turn.recall_s * 1e3,
            draft_ms=(drafted_at - started_at - turn.recall_s + turn.read_s) * 1e3,
            schedule_ms=(scheduled_at - drafted_at) * 1e3,
            forward_ms=(forwarded_at - scheduled_at - turn.read_s) * 1e3,
            sample_ms=(sampled_at - forwarded_at) * 1e3,
        )
        self.stats.add(report)
        if self.speculation is not None:
            self.speculation.learn(report, sampled_at - started_at)
        return report

    def _may_launch(self, batch: PersistentBatch) -> bool:
        """Whether to launch ahead: no drafter reads such a pass. One may be in flight already."""
        if self._in_flight.persistent_batch is not None:
            return True
        return not self._turn.is_read and self._in_flight.takes(batch, self.runner)

    @property
    def _may_launch_next(self) -> bool:
        """Drafts are of tokens that the host knows. Where none were found a pass is launched ahead
        of them, and then they are waited for: every second pass at least may be drafted for."""
        is_drafting = self.speculation is not None and not self.speculation.is_paused
        return not self._turn.is_read and (
            not is_drafting or self._in_flight.persistent_batch is None
        )

    def _schedule(
        self, now: float, drafts: Drafts, hooks: StepHooks
    ) -> tuple[list[ScheduledChunk], tuple[Request, ...]]:
        """The chunks to run, and those of their requests that never ran before."""
        self._in_flight.drop_abandoned()
        launched = self._in_flight.persistent_batch
        if launched is not None:  # planned with the step before, and running
            return self._still_running(launched), ()
        chunks = self._scheduler.step(hooks.reclaim, drafts, hooks.held_tenants)
        if self._scheduler.persistent_batch is not None:  # all of them have run before
            return chunks, ()
        first = tuple([chunk.request for chunk in chunks if chunk.request.scheduled_at is None])
        for request in first:
            request.scheduled_at = now
            hooks.on_scheduled(request)
        return [chunk for chunk in chunks if chunk.request.phase is Phase.RUNNING], first

    def _still_running(self, batch: PersistentBatch) -> list[ScheduledChunk]:
        if batch is self._scheduler.persistent_batch:
            return self._scheduler.persistent_chunks
        return [ScheduledChunk(r, 1) for r in batch.requests if r.phase is Phase.RUNNING]

    def _read(
        self, batch: PersistentBatch, chunks: Sequence[ScheduledChunk], hooks: StepHooks
    ) -> tuple[RequestOutput, ...]:
        """Wait for the oldest pass in flight, count its tokens as computed, give out the next."""
        found = self._in_flight.read()
        for layer in range(self.info.num_layers):
            hooks.on_layer(layer, chunks)
            hooks.between_layers()
        batch.computed()
        now = self.clock()
        return tuple(
            [
                self._answers.extend(request, (token,), (), now)
                if is_finite
                else self._answers.fail_not_finite(request)
                for request, token, is_finite in found
            ]
        )

    def _forward(
        self, chunks: Sequence[ScheduledChunk], batch: PersistentBatch | None, hooks: StepHooks
    ) -> Scored | None:
        """Run `chunks`, count their tokens as computed; logits [S, V] of those to sample from, or
        the tokens themselves where nothing else is asked for."""

        def on_layer(layer: int) -> None:
            hooks.on_layer(layer, chunks)
            hooks.between_layers()

        if batch is not None:
            hidden = self.runner.forward(batch.decoding, on_layer)
            self._turn.read_persistent(batch, hidden)
            if self.features is not None:
                on_layer(self.info.num_layers)
            batch.computed()
            return scored_by(hidden, self.runner, batch.plan(hidden.device))
        inputs = self._inputs(chunks)
        does_decode = all(
            [
                num_tokens == 1 == request.num_pending
                and request.embedding is None
                and request.prompt_logprobs is None
                for request, num_tokens, _ in chunks
            ]
        )
        if does_decode and any([chunk.drafted for chunk in chunks]):
            hidden = self.runner.forward(inputs, ignore_layer)  # too short to be stopped
            for layer in range(self.info.num_layers):
                on_layer(layer)
        else:
            hidden = self.runner.forward(inputs, on_layer)
        self._turn.read(chunks, inputs, hidden)
        if self.features is not None:
            on_layer(self.info.num_layers)
        for chunk in chunks:
            self._count_computed(chunk.request, chunk.num_tokens)
        if not does_decode:
            requests = [chunk.request for chunk in chunks]
            nums_drafted = [len(chunk.drafted) for chunk in chunks]
            hidden = read_prompts(requests, nums_drafted, inputs, hidden, self.runner)
        if not len(hidden):
            return None
        return self._scored(chunks, hidden)

    def _scored(self, chunks: Sequence[ScheduledChunk], hidden: Tensor) -> Scored:
        """Drawn tokens are found without logits on CPUs alone; drafts are verified by logits."""
        if hidden.is_cuda or any([chunk.drafted for chunk in chunks]):
            is_plain = all([chunk.request.row.is_plain for chunk in chunks])
            return scored(hidden, self.runner, is_plain=is_plain)
        rows = [chunk.request.row for chunk in chunks if chunk.request.awaits_token]
        return scored_by(hidden, self.runner, SamplingPlan(rows, hidden.device))

    def _count_computed(self, request: Request, num_tokens: int) -> None:
        """Count `num_tokens` more known tokens as computed: their KV is in the cache."""
        before, size = request.num_computed, self.pool.layout.block_size
        request.num_computed = now = before + num_tokens
        request.num_run += num_tokens
        if now // size > before // size:
            self.pool.commit(request.holder, request.tokens, now, request.salt)
        if request.cache_points:
            pin_computed(request, self.pool)

    def _inputs(self, chunks: Sequence[ScheduledChunk]) -> list[Chunk]:
        size, table_of, wants_all = (
            self.pool.layout.block_size,
            self.pool.table,
            self._turn.wants_all,
        )
        inputs: list[Chunk] = []
        for request, num_tokens, drafted in chunks:
            tokens, start = request.tokens, request.num_computed
            end, num_drafted = start + num_tokens, len(drafted)
            num_wanted: int = end == len(tokens)
            if request.needs_every_token or wants_all(request):
                num_wanted = num_tokens
            num_blocks = -(-(end + num_drafted) // size)
            inputs.append(
                Chunk(
                    [*tokens[start:end], *drafted],
                    start,
                    table_of(request.holder)[:num_blocks],
                    num_drafted + num_wanted,
                    request.open_slot,
                    request.adapter_number,
                )
            )
        return inputs

    def _embed(self, chunks: Sequence[ScheduledChunk]) -> tuple[RequestOutput, ...]:
        """Finish the requests that only wanted an embedding and have it now."""
        return tuple(
            self._answers.embed(chunk.request, chunk.request.embedding.vector())
            for chunk in chunks
            if chunk.request.embedding is not None and not chunk.request.num_pending
        )

    def _discard(self, request: Request) -> None:
        """Remove all that it computed, so that no look-up or reuse of a block finds it."""
        self._in_flight.synchronize()
        self.pool.forget(request.holder)
        self.pool.wipe(request.holder)  # what is not finite is in its blocks
        if self.speculation is not None:
            self.speculation.discard(request)

    def _leave(self, request: Request) -> None:
        if self.speculation is not None:
            self.speculation.forget(request)
        if request.phase is Phase.RUNNING:
            self._in_flight.synchronize()
        del self._request_by_id[request.request_id]
        self._scheduler.finish(request)

    def _now(self) -> float:
        return self.clock()  # whoever measures may set another

    def finish_reason(self, request: Request) -> FinishReason | None:
        """Why `request` is over with the output it has now, by this engine's limits; or None."""
        return finish_reason(
            request.output,
            len(request.tokens),
            request.sampling,
            eos_token_ids=self.info.eos_token_ids,
            max_model_len=self.max_len_for(request.tenant),
        )

    def max_len_for(self, tenant: str) -> int:
        """Tokens of prompt and output together that a request of `tenant` may have."""
        max_held = self.pool.accounts.max_held(tenant) * self.pool.layout.block_size
        return min(self.max_model_len, max_held)

    def _enter(self, request: Request) -> None:
        request.arrived_at = self.clock()
        request.ending = ending_of(
            request,
            eos_token_ids=self.info.eos_token_ids,
            max_model_len=self.max_len_for(request.tenant),
        )
        if request.adapter:
            request.adapter_number = 1 + self.info.adapters.index(request.adapter)
        self._request_by_id[request.request_id] = request
        self._scheduler.add(request)

    def _check(self, request: Request) -> None:
        if request.request_id in self._request_by_id:
            message = f"{request.request_id} is being computed already"
            raise InvalidRequest(message, field="request_id")
        check_request(
            request,
            info=self.info,
            max_len=self.max_len_for(request.tenant),
            max_model_len=self.max_model_len,
            finish_reason=self.finish_reason(request),
        )
