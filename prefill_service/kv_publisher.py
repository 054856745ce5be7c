"""Offers the KV of prompts to decode replicas, and publishes it while the engine computes it.

    begin         the engine has the prompt, and its transfer is offered
    on_scheduled  it runs for the first time: it is granted, and its cached KV is published
    on_layer      layers are published, several at a time; the last ones are withheld
    on_step       the first token is known. Once it was sent, `show` publishes the last layers
    abandon       the call has ended

Belongs to the engine's thread, and notifies the event loop: `prompts` and `on_report` belong to the
loop.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from baton.core.errors import Overloaded
from baton.core.ids import TransferId
from baton.core.kv_pool import Holder, HolderKind
from baton.core.messages import PrefillGranted, PrefillRequest
from baton.engine.engine import Engine
from baton.engine.engine_thread import EngineThread
from baton.engine.request.request import Request
from baton.engine.request.step_report import StepReport
from baton.engine.schedule.drafted_chunks import ScheduledChunk
from baton.kv_transfer.sending.layer_groups import LayerGroups
from baton.kv_transfer.sending.sender import Sender
from baton.prefill_service.open_prompts import OpenPrompts

PROGRESS_S = 0.25
"""Interval of progress reports to callers that wait for a first token."""


class KvPublisher:
    def __init__(
        self,
        engine: Engine,
        thread: EngineThread,
        sender: Sender,
        prompts: OpenPrompts,
        on_report: Callable[[StepReport], None],
    ) -> None:
        self.layer_groups = LayerGroups(engine.pool.layout)
        self._engine = engine
        self._thread = thread
        self._sender = sender
        self._prompts = prompts
        self._on_report = on_report
        self._progress_reported_at = float("-inf")
        self._withheld: list[TransferId] = []
        """Transfers whose last layers were computed in this step."""

    def begin(self, message: PrefillRequest, request: Request) -> None:
        """Let the engine compute the prompt, and offer its KV to the decode replica."""
        self._engine.add(request)
        self._sender.offer(
            message.transfer_id,
            message.receiver_epoch,
            source=Holder(HolderKind.REQUEST, message.transfer_id),
            num_tokens=len(message.prompt) + len(message.output),
            time_left_s=message.time_left_ms / 1e3,
            now=self._engine.clock(),
        )

    def abandon(self, transfer_id: TransferId) -> None:
        """Stop the prompt and its transfer. Nothing happens to what is over already."""
        self._engine.abort(transfer_id)
        self._sender.abort(transfer_id, "the prefill call ended")

    def on_scheduled(self, request: Request) -> None:
        layout, transfer_id = self._engine.pool.layout, TransferId(request.request_id)
        num_shared = request.num_cached // layout.block_size
        num_fresh = layout.num_blocks_for(len(request.tokens)) - num_shared
        try:
            self._sender.take(transfer_id, num_fresh, request.tenant)
        except Overloaded as error:
            self._refuse(transfer_id, error)
            return
        granted = PrefillGranted(
            transfer_id=transfer_id,
            sender_epoch=self._sender.epoch,
            layout=layout,
            num_tokens=len(request.tokens),
            num_cached=request.num_cached,
            head_runs=tuple(self._engine.pool.head_runs),
            tells_progress=True,
        )
        self._thread.tell(lambda: self._prompts.put_event(transfer_id, granted))
        self._sender.publish(transfer_id, request.num_computed)  # found in the cache

    def on_layer(self, layer: int, chunks: Sequence[ScheduledChunk]) -> None:
        self._report_progress()
        layers = self.layer_groups.computed(layer, sum([chunk.num_tokens for chunk in chunks]))
        if not layers:
            return
        are_last = self.layer_groups.are_last(layers)
        for chunk in chunks:
            transfer_id = TransferId(chunk.request.request_id)
            num_computed = chunk.request.num_computed + chunk.num_tokens
            if are_last:
                self._sender.withhold(transfer_id, num_computed, layers)
                self._withheld.append(transfer_id)
            else:
                self._sender.publish(transfer_id, num_computed, layers)

    def on_step(self, report: StepReport) -> None:
        self._thread.tell(lambda: self._on_report(report))
        self._report_progress()
        for output in report.outputs:  # the end of a transfer must not overtake the first token
            transfer_id = TransferId(output.request.request_id)
            if output.error is None:
                self._sender.finish(transfer_id)
            else:  # some of its layers may have left before the error was known
                self._sender.abort(transfer_id, str(output.error))
        first = {output.request.request_id for output in report.outputs}
        withheld, self._withheld = self._withheld, []
        for transfer_id in withheld:
            if transfer_id not in first:  # more of the prompt is to come
                self._sender.show(transfer_id)

    def show(self, transfer_id: TransferId) -> None:
        """The first token has left: publish the last layers."""
        self._sender.show(transfer_id)

    def on_transfer_ended(self, transfer_id: TransferId) -> None:
        self._thread.tell(lambda: self._prompts.put_event(transfer_id, None))

    def _refuse(self, transfer_id: TransferId, why: Overloaded) -> None:
        """Its turn has come, and others hold too much. Nothing of it is published from now on."""
        self._thread.tell(lambda: self._prompts.put_event(transfer_id, why))
        self._sender.abort(transfer_id, str(why))
        self._engine.abort(transfer_id)

    def _report_progress(self) -> None:
        now = self._engine.clock()
        if now >= self._progress_reported_at + PROGRESS_S:
            self._progress_reported_at = now
            self._thread.tell(self._prompts.report_progress)
