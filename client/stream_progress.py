"""The progress of a stream, and how to continue after a failure. Without I/O.

    nothing received --failure--> begin afresh (the server did nothing, or loses what it did)
    received n of id --failure--> resume after n
                                  | not a resumable stream, or no passing failure: raise

An error that the server reports within a stream ends it, since it would be reported again. Only a
broken connection is resumed.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from baton.client.errors import BatonClientError, StreamNotFound
from baton.client.retry import Attempts
from baton.proto import inference_pb2 as pb


class Response(Protocol):
    """The fields that responses of Generate and Chat share."""

    @property
    def stream_id(self) -> str: ...

    @property
    def sequence(self) -> int: ...


@dataclass(slots=True)
class StreamProgress:
    attempts: Attempts
    stream_id: str = ""
    """Empty before the first response, and for streams that are not resumable."""
    last_sequence: int = 0
    has_begun: bool = False
    broken_by: BatonClientError | None = None
    """The error of the broken connection, until it is resumed."""

    def received(self, response: Response) -> None:
        self.has_begun = True
        self.stream_id = response.stream_id
        self.last_sequence = response.sequence
        self.broken_by = None
        self.attempts.made_progress()

    def resumption(self) -> pb.ResumeRequest | None:
        """The resumption for the next call; None: begin from the start."""
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
