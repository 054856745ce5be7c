"""A generation as it arrives."""

from __future__ import annotations

import time
from collections.abc import Iterator
from types import TracebackType
from typing import Protocol

import grpc

from baton.client.errors import BatonClientError, DeadlineExceeded, ServerFailed, from_rpc_error
from baton.client.results import Delta, GenerationResult, delta_from
from baton.client.retry import RetryPolicy
from baton.proto import inference_pb2 as pb


class Call(Protocol):
    """A gRPC call that answers with a stream."""

    def __next__(self) -> pb.GenerateResponse: ...

    def cancel(self) -> bool: ...


class OpenCall(Protocol):
    def __call__(self, *, timeout: float) -> Call:
        """Begin the call afresh."""


class TextStream:
    """Iterate for deltas; close it, or leave its context, to stop the generation.

        with client.stream("Once upon a time") as stream:
            for delta in stream:
                print(delta.text, end="")

    Iterating raises BatonClientError. Attempts that fail before the first delta are repeated as
    the retry policy says; `timeout_s` covers them all.
    """

    def __init__(self, open_call: OpenCall, *, timeout_s: float, retry: RetryPolicy) -> None:
        self._open_call = open_call
        self._retry = retry
        self._ends_at = time.monotonic() + timeout_s
        self._num_failed = 0
        self._deltas: list[Delta] = []
        self._is_closed = False
        self._call = open_call(timeout=timeout_s)

    def __enter__(self) -> TextStream:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def __iter__(self) -> Iterator[Delta]:
        return self

    def __next__(self) -> Delta:
        while not self._is_closed:
            try:
                delta = delta_from(next(self._call))
            except StopIteration:
                self._is_closed = True
            except grpc.RpcError as error:
                self._try_again_after(from_rpc_error(error))
            else:
                self._deltas.append(delta)
                return delta
        raise StopIteration

    def close(self) -> None:
        """Stop the generation if it still runs. Safe to repeat."""
        self._is_closed = True
        self._call.cancel()

    def result(self) -> GenerationResult:
        """Everything in one piece; waits for what has not arrived yet.

        Raises ServerFailed if the stream ended, or was closed, before its last delta.
        """
        for _ in self:
            pass
        last = self._deltas[-1] if self._deltas else None
        if last is None or not last.finish_reason or not last.usage or not last.receipt:
            raise ServerFailed("the stream has no last delta", grpc.StatusCode.UNKNOWN)
        return GenerationResult(
            request_id=last.request_id,
            model=last.model,
            text="".join(delta.text for delta in self._deltas),
            token_ids=tuple(token for delta in self._deltas for token in delta.token_ids),
            logprobs=tuple(entry for delta in self._deltas for entry in delta.logprobs),
            finish_reason=last.finish_reason,
            usage=last.usage,
            receipt=last.receipt,
        )

    def _try_again_after(self, error: BatonClientError) -> None:
        """Begin anew after a wait, or raise `error` if that is not worth it, or not safe."""
        self._num_failed += 1
        delay_s = None if self._deltas else self._retry.delay_s(error, self._num_failed)
        time_left_s = self._ends_at - time.monotonic()
        if delay_s is None or delay_s >= time_left_s:
            self._is_closed = True
            raise error
        time.sleep(delay_s)
        time_left_s = self._ends_at - time.monotonic()
        if time_left_s <= 0:
            self._is_closed = True
            raise DeadlineExceeded(str(error), grpc.StatusCode.DEADLINE_EXCEEDED) from error
        self._call = self._open_call(timeout=time_left_s)
