"""Answers `Replica.ProbePeer`: measures KV transfers from a peer over a given transport."""

from __future__ import annotations

from baton.core.errors import BatonError
from baton.core.ids import Epoch
from baton.kv_transfer.transport.auto.probe import Prober
from baton.kv_transfer.transports import Transports
from baton.proto import replica_pb2 as pb

MAX_ROUNDS = 32


class PeerProbing:
    def __init__(self, transports: Transports, prober: Prober, epoch: Epoch) -> None:
        self._transports = transports
        self._prober = prober
        self._epoch = epoch

    def metrics(self) -> dict[str, float]:
        """The transports' measurements, by Prometheus name."""
        return self._transports.metrics()

    async def probe(self, request: pb.ProbePeerRequest) -> pb.ProbePeerReply:
        """Measure; a failure is part of the answer, not an error."""
        reply = pb.ProbePeerReply()
        try:
            transport = self._transports.get(request.transport)
            for _ in range(min(MAX_ROUNDS, max(1, request.num_rounds))):
                found = await self._prober.measure(
                    transport,
                    request.peer.address,
                    Epoch(request.peer.epoch),
                    self._epoch,
                    request.num_bytes,
                )
                reply.round_s.append(found.seconds)
                reply.latency_s = min(found.latency_s, reply.latency_s or found.latency_s)
                reply.num_bytes = found.num_bytes
        except BatonError as error:
            reply.error = str(error)
        return reply
