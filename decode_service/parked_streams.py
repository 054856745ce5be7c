"""Streams whose gateway may be gone: their requests and tokens, kept for a moment.

    open here -----------> taken: it ends here, and goes on at the gateway that asked
    its gateway is lost -> parked: nothing runs, its blocks are cached ones --> taken
    it has finished  -----|                                                '--> forgotten
    its client has all it wants, after a stop string, say
    its gateway took it back: it is no longer wanted, and is forgotten at once

Bounded in time, number and bytes: the oldest are forgotten first. A stream that is taken stays, so
that it can be asked for twice. Belongs to the event loop.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import replace

from baton.core.ids import ReplicaId
from baton.core.messages import ParkedStream
from baton.core.parking import Parking, TakeStream
from baton.decode_service.generating import Generating

PARKED_S = 15.0
"""Seconds for which a stream is kept: longer than a client takes to notice, to come back, and to be
asked for once more."""
MAX_PARKED = 4096
MAX_PARKED_BYTES = 256 << 20
TOKEN_BYTES = 40
"""Bytes of a parked token: a Python int, and its place in the list."""
LOGPROB_BYTES = 160
"""Bytes of the logprob of a parked token, and of each of its alternatives."""


class ParkedStreams:
    def __init__(self) -> None:
        self._parked: OrderedDict[str, tuple[float, ParkedStream]] = OrderedDict()
        """Parked streams by id, each with the time when it was parked; oldest first."""
        self._num_bytes = 0

    def __len__(self) -> int:
        return len(self._parked)

    def park(self, generating: Generating, replica_id: ReplicaId, now: float) -> None:
        """Park a request that is over here, if it is to be found again."""
        parking, parked = generating.message.parking, as_parked(generating, replica_id)
        if parking is None or parked is None:
            return
        self._forget(parking.stream_id)
        self._parked[parking.stream_id] = now, parked
        self._num_bytes += _size(parked)
        self.forget_old(now)

    def get(self, wanted: TakeStream, now: float) -> ParkedStream | None:
        """None also for a stream of another client. A stream is forgotten once it is asked for the
        last time."""
        self.forget_old(now)
        _, found = self._parked.get(wanted.stream_id, (now, None))
        if found is None or not wanted.is_for(found.request.parking):
            return None
        if wanted.is_end:
            self._forget(wanted.stream_id)
        return found

    def forget(self, parking: Parking) -> None:
        """Also what an earlier attempt at the stream has left."""
        _, found = self._parked.get(parking.stream_id, (0.0, None))
        if found is not None and TakeStream(parking.stream_id, parking.owner).is_for(
            found.request.parking
        ):
            self._forget(parking.stream_id)

    def forget_old(self, now: float) -> None:
        """Also called now and then: what nobody asks for must go as well."""
        while self._parked:
            stream_id, (parked_at, _) = next(iter(self._parked.items()))
            is_too_much = len(self._parked) > MAX_PARKED or self._num_bytes > MAX_PARKED_BYTES
            if now < parked_at + PARKED_S and not is_too_much:
                return
            self._forget(stream_id)

    def _forget(self, stream_id: str) -> None:
        found = self._parked.pop(stream_id, None)
        if found is not None:
            self._num_bytes -= _size(found[1])


def as_parked(generating: Generating, replica_id: ReplicaId) -> ParkedStream | None:
    """The stream as far as it has come; None for one that failed, moved away, or lacks what was
    asked for."""
    message = generating.message
    output = (*message.output, *generating.output)
    num_wanted = len(output) if message.sampling.num_logprobs is not None else 0
    lacks_logprobs = len(generating.logprobs) != num_wanted  # logprobs of `message.output` are lost
    if message.parking is None or generating.error or generating.has_left or lacks_logprobs:
        return None
    return ParkedStream(
        request=replace(message, output=output),
        logprobs=tuple(generating.logprobs),
        finish_reason=generating.finish_reason,
        receipt=generating.receipt(replica_id),
    )


def _size(parked: ParkedStream) -> int:
    """Bytes, about."""
    parking = parked.request.parking
    num_tokens = len(parked.request.prompt) + len(parked.request.output)
    num_logprobs = sum(1 + len(entry.top) for entry in parked.logprobs)
    num_order = 0 if parking is None else len(parking.order)
    return num_tokens * TOKEN_BYTES + num_logprobs * LOGPROB_BYTES + num_order
