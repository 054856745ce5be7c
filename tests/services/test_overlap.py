"""KV that leaves a prefill replica layer by layer, while later layers are computed, and the last of
it behind the first token."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from dataclasses import replace

from tests.in_process_fleet import GREEDY, VOCAB_SIZE, Fleet, running_fleet
from torch import Tensor

from baton.core.ids import ReplicaId, TransferId
from baton.decode_service.worker import DecodeWorker
from baton.engine.engine import Engine
from baton.engine.passes.echo import echo_output
from baton.engine.request.step_report import StepReport
from baton.engine.schedule.drafted_chunks import ScheduledChunk
from baton.engine.step_hooks import StepHooks

PREFILL, DECODE = ReplicaId("prefill-1"), ReplicaId("decode-2")
PROMPT = [7, 3, 9, 1, 4, 4, 8, 2, 6, 5, 11]
NUM_LAYERS = 3
GIVE_UP_S = 30.0


def decoding(fleet: Fleet) -> DecodeWorker:
    worker = fleet.replicas[DECODE].worker
    assert isinstance(worker, DecodeWorker)
    return worker


def num_bytes_written(fleet: Fleet) -> int:
    return decoding(fleet).core.kv.receiver.counters.num_bytes


def dwell_until_written(fleet: Fleet, num_bytes: int) -> None:
    """Stay where P's engine is, between two layers or after the last, until D has so much."""
    thread, gives_up_at = fleet.replicas[PREFILL].worker.core.thread, time.monotonic() + GIVE_UP_S
    pause = threading.Event()
    while num_bytes_written(fleet) < num_bytes and time.monotonic() < gives_up_at:
        pause.wait(0.001)
        thread._run_express()


def kv_bytes(engine: Engine) -> int:
    layout = engine.pool.layout
    return layout.num_blocks_for(len(PROMPT)) * layout.block_bytes


async def test_each_layer_is_at_the_decode_replica_before_the_next_is_computed() -> None:
    async with running_fleet() as fleet:
        engine, written = fleet.engines[PREFILL], list[int]()
        honest, size = engine.step, kv_bytes(engine) // NUM_LAYERS

        def dawdle(hooks: StepHooks) -> StepReport:
            def publish(layer: int, chunks: Sequence[ScheduledChunk]) -> None:
                hooks.on_layer(layer, chunks)
                if layer < NUM_LAYERS - 1:
                    dwell_until_written(fleet, (layer + 1) * size)
                    written.append(num_bytes_written(fleet))

            return honest(replace(hooks, on_layer=publish))

        engine.step = dawdle  # type: ignore[method-assign,assignment]

        answer = await fleet.ask(PROMPT)

        assert written == [size, 2 * size]
        assert answer.tokens == echo_output(PROMPT, GREEDY.max_tokens, VOCAB_SIZE)
        assert answer.receipt.kv_bytes == 3 * size
        assert answer.receipt.notes == ()
        await fleet.assert_nothing_is_held()


async def test_the_first_token_waits_for_none_of_the_last_layer() -> None:
    async with running_fleet() as fleet:
        engine, sender = fleet.engines[PREFILL], fleet.replicas[PREFILL].worker.core.kv.sender
        step, show, seen = engine.step, sender.show, list[tuple[bool, int]]()
        is_over = threading.Event()

        def note_end(hooks: StepHooks) -> StepReport:
            report = step(hooks)
            is_over.set()
            return report

        def show_behind_the_first_token(transfer_id: TransferId) -> None:
            if is_over.is_set():
                gives_up_at = time.monotonic() + GIVE_UP_S
                while not has_token() and time.monotonic() < gives_up_at:
                    time.sleep(0.001)
                seen.append((has_token(), num_bytes_written(fleet)))
            show(transfer_id)

        def has_token() -> bool:
            return any(generating.output for generating in tuple(decoding(fleet).requests.open))

        engine.step = note_end  # type: ignore[method-assign,assignment]
        sender.show = show_behind_the_first_token  # type: ignore[method-assign]

        answer = await fleet.ask(PROMPT)

        ((is_told, num_bytes),) = seen
        assert is_told
        assert num_bytes <= kv_bytes(engine) * (NUM_LAYERS - 1) // NUM_LAYERS
        assert answer.receipt.kv_bytes == kv_bytes(engine)
        assert answer.tokens == echo_output(PROMPT, GREEDY.max_tokens, VOCAB_SIZE)
        await fleet.assert_nothing_is_held()


async def test_a_prompt_whose_logits_are_not_finite_is_not_adopted_though_its_kv_has_left() -> None:
    async with running_fleet() as fleet:
        engine = fleet.engines[PREFILL]
        honest = engine.runner.logits
        num_bytes = kv_bytes(engine) * (NUM_LAYERS - 1) // NUM_LAYERS  # the last layer never leaves

        def spoil(hidden: Tensor) -> Tensor:
            dwell_until_written(fleet, num_bytes)
            return honest(hidden) * float("nan")

        engine.runner.logits = spoil  # type: ignore[method-assign]

        answer = await fleet.ask(PROMPT)

        assert num_bytes_written(fleet) == num_bytes
        assert decoding(fleet).core.kv.receiver.counters.num_adopted == 0
        assert answer.tokens == echo_output(PROMPT, GREEDY.max_tokens, VOCAB_SIZE)
        assert any("not finite" in note for note in answer.receipt.notes)
        await fleet.assert_nothing_is_held()
        again = await fleet.ask([9, *PROMPT])
        assert again.tokens == echo_output([9, *PROMPT], GREEDY.max_tokens, VOCAB_SIZE)
