"""One batch, worked on by the gateway that holds its lease.

    input is copied and looked through --> faults: failed
        | lines without an answer run, some at once --> journal
        | until all are answered, the window is over, or it is cancelled
    answers become the output, failures the error file --> completed, expired or cancelled

A later holder begins at the same point, with the answers in the journal. Before the end, clients
learn nothing that a successor could contradict.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, Protocol

import msgspec

from baton.core.errors import NotKept, Unauthenticated
from baton.gateway.access.api_keys import Caller
from baton.gateway.access.batch_config import BatchConfig
from baton.gateway.batches.disk import Disk
from baton.gateway.batches.files import Files, NewFile
from baton.gateway.batches.input_lines import InputLine, LinePlace, look_through, read_line
from baton.gateway.batches.journal import (
    Answered,
    Journal,
    Part,
    part_of,
    parts_before,
    read_answers,
)
from baton.gateway.batches.lease import Lease
from baton.gateway.batches.line_scheduler import LinePreempted, LineScheduler
from baton.gateway.batches.output import (
    LineError,
    LineResponse,
    error_line,
    response_line,
    write_lines,
)
from baton.gateway.batches.records import Batch, BatchFault, BatchFaults, BatchOrder, output_id
from baton.gateway.batches.work_folder import WorkFolder

LOOK_S = 0.5
"""Seconds between checks for a cancel, and between updates of its counts."""
AGAIN_S = 60.0
"""The longest wait before a refused line is tried again."""
MAX_FAILURES = 3
"""The most failures of one line that are not its own fault."""
FAILED_AGAIN_S = 1.0
REFUSED_AGAIN_S, MOST_REFUSED_AGAIN_S = 0.05, 5.0
"""The shortest wait of a refused line, doubled for each refusal in a row: `retry-after` may be 0
s."""
EXPIRED = LineError(
    code="batch_expired", message="the batch's completion window was over before its turn"
)

Ending = Literal["completed", "expired", "cancelled"]


@dataclass(frozen=True, slots=True, kw_only=True)
class LineAnswer:
    status: int
    body: bytes
    """JSON."""
    retry_after_s: float | None = None
    """Set: it was refused for lack of capacity, and can be retried after so many seconds."""
    ignored_fields: Sequence[str] = ()
    """Fields of the body that had no effect."""


class AnswerLine(Protocol):
    async def __call__(
        self, endpoint: str, body: bytes, *, caller: Caller, request_id: str
    ) -> LineAnswer: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchContext:
    """What all batches of a gateway share."""

    folder: WorkFolder
    disk: Disk
    files: Files
    scheduler: LineScheduler
    answer: AnswerLine
    caller_of: Callable[[BatchOrder], Caller | None]
    """The caller of a batch's lines; None while no key of its owner may use the models."""
    config: BatchConfig
    count: Callable[[str], None]
    """Called with how each line ended: ok, failed or given_up."""
    unix_time: Callable[[], float] = time.time


def refusal_wait_s(retry_after_s: float, num_before: int) -> float:
    """Seconds until a line is tried again that was refused `num_before` times in a row before."""
    at_least_s = min(REFUSED_AGAIN_S * 2.0 ** min(num_before, 32), MOST_REFUSED_AGAIN_S)
    return min(max(retry_after_s, at_least_s), AGAIN_S)


@dataclass(slots=True)
class BatchWork:
    context: BatchContext
    order: BatchOrder
    batch: Batch
    lease: Lease
    _published: bytes = field(default=b"", init=False)
    _before: list[Part] = field(default_factory=list, init=False)
    """What earlier holders have written."""

    async def run(self) -> Batch:
        """Run the batch and return its final state, which the caller stores. Raises LeaseLost,
        OSError, StorageFull, StorageUnavailable; Unauthenticated while its owner has no key."""
        path = self.context.folder.input_path(self.batch.id)
        if not await self._take_input(path):
            fault = BatchFault(code="file_not_found", message="the input is not there any more")
            return self._failed([fault])
        limit = self.context.config.max_lines
        found = await self.context.disk(look_through, path, self.batch.endpoint, limit)
        if found.faults:
            return self._failed(found.faults)
        if self.batch.in_progress_at is None:
            self.batch.become("in_progress", self._now)
        self.batch.request_counts.total = len(found.places)
        answered = await self._read_answers()
        pending = deque(place for place in found.places if place.line not in answered)
        ending = await self._answer_all(pending, path)
        if ending == "cancelled":
            self.batch.status = "cancelling"
        else:
            self.batch.become("finalizing", self._now)
        await self._publish_counts()
        await self._write_output(found.places, path, ending)
        self.batch.become(ending, self._now)
        return self.batch

    @property
    def _now(self) -> float:
        return self.context.unix_time()

    def _failed(self, faults: list[BatchFault]) -> Batch:
        self.batch.errors = BatchFaults(data=faults)
        self.batch.become("failed", self._now)
        return self.batch

    async def _take_input(self, path: Path) -> bool:
        """Copy it, unless that has been done. False if it is gone."""
        if await self.context.disk(path.exists):
            return True
        copy = path.with_name(f".input.{self.lease.epoch}")
        try:
            async with self.context.files.reading(
                self.batch.input_file_id, self.order.owner
            ) as reading:
                file = await self.context.disk(copy.open, "wb")
                try:
                    async for chunk in reading:
                        await self.context.disk(file.write, chunk)
                    await self.context.disk(file.flush)
                    await self.context.disk(os.fsync, file.fileno())
                finally:
                    await self.context.disk(file.close)
        except NotKept:
            return False
        await self.context.disk(copy.replace, path)
        return True

    async def _read_answers(self) -> set[int]:
        """Which lines earlier holders have answered."""
        folder = self.context.folder.of(self.batch.id)
        self._before = await self.context.disk(parts_before, folder, self.lease.epoch)
        return set(await self._count(self._before))

    async def _count(self, parts: list[Part]) -> dict[int, bool]:
        """Whether each line that was answered succeeded, by line number."""

        def read() -> dict[int, bool]:
            return {one.line: one.is_ok for one in read_answers(parts)}

        found = await self.context.disk(read)
        self.batch.request_counts.completed = sum(found.values())
        self.batch.request_counts.failed = len(found) - sum(found.values())
        return found

    async def _answer_all(self, pending: deque[LinePlace], path: Path) -> Ending:
        """Answer the pending lines; return why it ended. Raises LeaseLost, OSError,
        Unauthenticated."""
        context = self.context
        folder = context.folder.of(self.batch.id)
        journal = Journal(folder, self.lease.epoch, self.lease.check, context.disk)
        num_workers = min(context.config.max_running, len(pending))
        workers = [
            asyncio.create_task(self._answer_some(pending, path, journal), name="answers lines")
            for _ in range(num_workers)
        ]
        try:
            while True:
                await self._publish_counts()
                cancelled_at = await context.disk(context.folder.cancelled_at, self.batch.id)
                if cancelled_at is not None:
                    self.batch.cancelling_at = int(cancelled_at)
                    return "cancelled"
                left_s = self.batch.expires_at - self._now
                if left_s <= 0 and workers:
                    return "expired"
                if not workers:
                    return "completed"
                if context.caller_of(self.order) is None:
                    raise Unauthenticated("its owner's API key is gone")
                done, still = await asyncio.wait(
                    workers, timeout=min(LOOK_S, left_s), return_when=asyncio.FIRST_EXCEPTION
                )
                for worker in done:
                    worker.result()
                workers = list(still)
        finally:
            for worker in workers:
                worker.cancel()
            await asyncio.gather(*workers, return_exceptions=True)
            await journal.close()

    async def _answer_some(self, pending: deque[LinePlace], path: Path, journal: Journal) -> None:
        while pending:
            place = pending.popleft()
            line = await self.context.disk(read_line, path, place)
            request_id = self._request_id(place)
            answer = await self._answer(line, request_id)
            is_ok = answer.status < 300
            response = LineResponse(
                status_code=answer.status, request_id=request_id, body=msgspec.Raw(answer.body)
            )
            if answer.ignored_fields:
                response.ignored_fields = answer.ignored_fields
            output = response_line(line.custom_id, response)
            await journal.append(Answered(place.line, is_ok, output))
            self.context.count("ok" if is_ok else "failed")
            counts = self.batch.request_counts
            if is_ok:
                counts.completed += 1
            else:
                counts.failed += 1

    async def _answer(self, line: InputLine, request_id: str) -> LineAnswer:
        """Answer one line, retrying while it is refused for lack of capacity."""
        num_failures = num_refusals = 0
        while True:
            with suppress(LinePreempted):
                answer = await self.context.scheduler.run(lambda: self._try(line, request_id))
                if answer.retry_after_s is not None:
                    await asyncio.sleep(refusal_wait_s(answer.retry_after_s, num_refusals))
                    num_refusals += 1
                    continue
                num_failures, num_refusals = num_failures + 1, 0
                if answer.status < 500 or num_failures == MAX_FAILURES:
                    return answer
                await asyncio.sleep(FAILED_AGAIN_S * num_failures)
                continue
            self.context.count("given_up")

    async def _try(self, line: InputLine, request_id: str) -> LineAnswer:
        caller = self.context.caller_of(self.order)
        if caller is None:
            return LineAnswer(status=401, body=b"null", retry_after_s=AGAIN_S)
        return await self.context.answer(
            line.url, bytes(line.body), caller=caller, request_id=request_id
        )

    async def _publish_counts(self) -> None:
        """Publish the batch's counts if they changed."""
        encoded = msgspec.json.encode(self.batch)
        if encoded != self._published:
            await self.context.disk(self.context.folder.write_state, self.batch, self.lease.epoch)
            self._published = encoded

    async def _write_output(self, places: list[LinePlace], path: Path, ending: Ending) -> None:
        """Raises LeaseLost, OSError, StorageFull, StorageUnavailable."""
        context, batch, folder = self.context, self.batch, self.context.folder.of(self.batch.id)
        parts = [*self._before, *await context.disk(part_of, folder, self.lease.epoch)]

        def answers() -> Iterator[bytes]:
            return (one.output for one in read_answers(parts) if one.is_ok)

        def failures() -> Iterator[bytes]:
            answered: set[int] = set()
            for one in read_answers(parts):
                answered.add(one.line)
                if not one.is_ok:
                    yield one.output
            for place in places if ending == "expired" else ():
                if place.line not in answered:
                    line = read_line(path, place)
                    yield error_line(line.custom_id, self._request_id(place), EXPIRED)

        await self._count(parts)
        if ending == "expired":
            counts = batch.request_counts
            counts.expired = counts.total - counts.completed - counts.failed
            counts.failed += counts.expired
        await context.disk(self.lease.check)
        output, errors = self._new_file("output"), self._new_file("error")
        batch.output_file_id = await write_lines(context.files, output, answers(), context.disk)
        batch.error_file_id = await write_lines(context.files, errors, failures(), context.disk)

    def _new_file(self, what: str) -> NewFile:
        return NewFile(
            owner=self.order.owner,
            filename=f"{self.batch.id}_{what}.jsonl",
            purpose="batch_output",
            ttl_s=self.order.output_ttl_s,
            id=output_id(self.batch.id, what),
        )

    def _request_id(self, place: LinePlace) -> str:
        return f"{self.batch.id}-{place.line}"
