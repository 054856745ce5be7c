"""The batch service of a gateway: files, batches and their runner, put together."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, replace

from baton.gateway.access.api_keys import Caller
from baton.gateway.batches.batches import Batches
from baton.gateway.batches.disk import Disk
from baton.gateway.batches.files import Files
from baton.gateway.batches.line_scheduler import LineScheduler
from baton.gateway.batches.records import BatchOrder
from baton.gateway.batches.runner import BatchRunner
from baton.gateway.batches.work import AnswerLine, BatchContext
from baton.gateway.batches.work_folder import WorkFolder
from baton.gateway.requests.gateway import Gateway


@dataclass(frozen=True, slots=True)
class BatchService:
    files: Files
    batches: Batches
    runner: BatchRunner
    disk: Disk

    def close(self) -> None:
        """Close it, after the ports are closed and the runner has stopped."""
        self.disk.close()


def batch_service(gateway: Gateway, answer: AnswerLine) -> BatchService | None:
    """None where nothing is kept. A gateway only runs the batches of its own model."""
    storage, config, model = gateway.storage, gateway.config.batches, gateway.model.name
    if storage is None:
        return None
    disk, files = Disk(), Files(storage)
    name = re.sub(r"[^A-Za-z0-9.-]+", "-", model)
    folder = WorkFolder(storage.aside(f"batches-of-{name}"))
    batches = Batches(storage, folder, disk, model=model, config=config)
    context = BatchContext(
        folder=folder,
        disk=disk,
        files=files,
        scheduler=LineScheduler(
            gateway.dispatcher.room,
            max_running=config.max_running,
            max_beside=config.max_beside,
            max_share=config.max_share,
        ),
        answer=answer,
        caller_of=_callers(gateway),
        config=config,
        count=lambda outcome: gateway.metrics.batch_lines.add(1, outcome),
    )
    runner = BatchRunner(
        context, batches, count=lambda status: gateway.metrics.batches.add(1, status)
    )
    return BatchService(files, batches, runner, disk)


def _callers(gateway: Gateway) -> Callable[[BatchOrder], Caller | None]:
    def caller_of(order: BatchOrder) -> Caller | None:
        caller = gateway.keys.caller_of(order.owner, order.models)  # of now: keys may change
        return None if caller is None else replace(caller, is_background=True)

    return caller_of
