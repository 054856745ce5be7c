"""How far a stream has come, and how it goes on after a failure. Knows no I/O.

    nothing received --failure--> begin afresh (the server did nothing, or loses what it did)
    received n of id --failure--> resume after n
                                  | not a resumable stream, or no passing failure: raise

A failure that the server itself reported in mid-stream is the stream's end: it would be reported
again. Only a connection that broke is worth coming back for.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from baton.client.errors import BatonClientError, StreamNotFound
from baton.client.retry import Attempts
from baton.proto import inference_pb2 as pb


class Response(Protocol):
    """What the responses of Generate and Chat have in common."""

    @property
    def stream_id(self) -> str: ...

    @property
    def sequence(self) -> int: ...


@dataclass(slots=True)
class StreamProgress:
    attempts: Attempts
    stream_id: str = ""
    """Empty while nothing has come, and of streams that are not resumable."""
    last_sequence: int = 0
    has_begun: bool = False
    broken_by: BatonClientError | None = None
    """What the connection broke with, while it has not been taken up again."""

    def received(self, response: Response) -> None:
        self.has_begun = True
        self.stream_id = response.stream_id
        self.last_sequence = response.sequence
        self.broken_by = None
        self.attempts.made_progress()

    def resumption(self) -> pb.ResumeRequest | None:
        """What to ask for on the next call; None: all, from the beginning."""
        if not self.has_begun:
            return None
        return pb.ResumeRequest(stream_id=self.stream_id, last_sequence=self.last_sequence)

    def delay_s_after(self, error: BatonClientError) -> float:
        """How long to wait before the next call. Raises if there is to be none."""
        if not self.has_begun:
            return self.attempts.delay_s_after(error)
        if isinstance(error, StreamNotFound) and self.broken_by is not None:
            raise self.broken_by from error  # the connection broke, and the stream went with it
        if not self.stream_id or (error.reason and self.broken_by is None):
            raise error
        self.broken_by = self.broken_by or error
        return self.attempts.delay_s_after(error)
