"""How `baton.core.kv_events` is written as protobuf (proto/replica.proto)."""

from __future__ import annotations

from baton.core.kv_events import KvChange, KvEvent, KvEvents
from baton.proto import replica_pb2 as pb


def kv_events_to_proto(events: KvEvents) -> pb.KvEvents:
    return pb.KvEvents(
        first_sequence=events.first_sequence,
        events=[_event_to_proto(event) for event in events.events],
        is_snapshot=events.is_snapshot,
        part=events.part,
        has_more=events.has_more,
    )


def kv_events_from_proto(message: pb.KvEvents) -> KvEvents:
    """Raises ValueError for a change that this version does not know."""
    return KvEvents(
        first_sequence=message.first_sequence,
        events=tuple(_event_from_proto(event) for event in message.events),
        is_snapshot=message.is_snapshot,
        part=message.part,
        has_more=message.has_more,
    )


def _event_to_proto(event: KvEvent) -> pb.KvEvent:
    match event.change:
        case KvChange.STORED:
            return pb.KvEvent(stored=event.names)
        case KvChange.EVICTED:
            return pb.KvEvent(evicted=event.names)
        case KvChange.CLEARED:
            return pb.KvEvent(cleared=True)


def _event_from_proto(message: pb.KvEvent) -> KvEvent:
    match message.WhichOneof("event"):
        case "stored":
            return KvEvent(KvChange.STORED, message.stored)
        case "evicted":
            return KvEvent(KvChange.EVICTED, message.evicted)
        case "cleared":
            return KvEvent(KvChange.CLEARED)
        case unknown:
            raise ValueError(f"a change of the prefix cache that is not known here: {unknown}")
