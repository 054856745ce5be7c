"""How capacity and demand, heard between replicas and gateways, are protobuf (replica.proto)."""

from __future__ import annotations

from dataclasses import replace

from baton.core.replicas import Capacity, Demand
from baton.core.step_times import StepTimes
from baton.proto import replica_pb2 as pb
from baton.proto.plain_fields import plain_fields_of, values_by_name

_DEMAND = plain_fields_of(pb.Demand)
_CAPACITY = plain_fields_of(pb.Capacity)
_STEP_TIMES = plain_fields_of(pb.StepTimes)


def demand_to_proto(demand: Demand) -> pb.Demand:
    return pb.Demand(**values_by_name(demand, _DEMAND))


def demand_from_proto(message: pb.Demand) -> Demand:
    return Demand(**values_by_name(message, _DEMAND))


def step_times_to_proto(times: StepTimes) -> pb.StepTimes:
    return pb.StepTimes(**values_by_name(times, _STEP_TIMES))


def step_times_from_proto(message: pb.StepTimes) -> StepTimes:
    return StepTimes(**values_by_name(message, _STEP_TIMES))


def capacity_to_proto(capacity: Capacity) -> pb.Capacity:
    times = capacity.step_times
    return pb.Capacity(
        **values_by_name(capacity, _CAPACITY),
        step_times=None if times is None else step_times_to_proto(times),
    )


def capacity_from_proto(message: pb.Capacity) -> Capacity:
    is_timed = message.HasField("step_times")
    capacity = Capacity(
        **values_by_name(message, _CAPACITY),
        step_times=step_times_from_proto(message.step_times) if is_timed else None,
    )
    return capacity if capacity.slowness else replace(capacity, slowness=1.0)  # not told
