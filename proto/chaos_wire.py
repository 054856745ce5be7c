"""How the rules of `core/chaos.py` are written as protobuf (proto/replica.proto)."""

from __future__ import annotations

from collections.abc import Sequence

from baton.core.chaos import Chaos, ChaosRule, Fault
from baton.core.ids import Epoch
from baton.proto import replica_pb2 as pb


def chaos_to_proto(
    rules: Sequence[ChaosRule],
    *,
    epoch: Epoch,
    seed: int = 0,
    is_killed: bool = False,
    stopped_s: float = 0.0,
) -> pb.ChaosRequest:
    return pb.ChaosRequest(
        epoch=epoch,
        seed=seed,
        is_killed=is_killed,
        stopped_s=stopped_s,
        rules=[
            pb.ChaosRule(
                at=rule.at,
                fault=rule.fault.value,
                rate=rule.rate,
                delay_s=rule.delay_s,
                max_times=rule.max_times,
            )
            for rule in rules
        ],
    )


def rules_from_proto(message: pb.ChaosRequest) -> tuple[ChaosRule, ...]:
    """Raises ValueError for a rule that cannot be."""
    return tuple(
        ChaosRule(
            at=rule.at,
            fault=Fault(rule.fault),
            rate=rule.rate,
            delay_s=rule.delay_s,
            max_times=rule.max_times if rule.HasField("max_times") else None,
        )
        for rule in message.rules
    )


def faults_to_proto(chaos: Chaos) -> pb.ChaosReply:
    return pb.ChaosReply(
        injected=[
            pb.InjectedFaults(at=at, fault=fault.value, num_injected=count)
            for (at, fault), count in sorted(chaos.injected.items())
        ]
    )
