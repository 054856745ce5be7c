"""A replica's service for tests that script a part of it: all else is UNIMPLEMENTED."""

from __future__ import annotations

from baton.proto.replica_pb2_grpc import ReplicaServicer


class PartialReplica(ReplicaServicer):
    """The base class answers so by itself; type checkers want to be told."""

    Ping = ReplicaServicer.Ping
    Inspect = ReplicaServicer.Inspect
    Examine = ReplicaServicer.Examine
    Drain = ReplicaServicer.Drain
    Undrain = ReplicaServicer.Undrain
    Flip = ReplicaServicer.Flip
    ResetPrefixCache = ReplicaServicer.ResetPrefixCache
    ProbePeer = ReplicaServicer.ProbePeer
    Unsettle = ReplicaServicer.Unsettle
    WatchKv = ReplicaServicer.WatchKv
