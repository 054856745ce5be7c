"""Waiting time in a queue with several servers (M/G/c by Allen and Cunneen).

    P(wait > 0)    Erlang's C of the servers and their load
    wait > t       exponential, of mean  S (1 + cv^2) / (2 (c - a)),   a = rate x S

A line in front of all replicas, as gateways keep it, is one queue with many servers.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import inf, log


@dataclass(frozen=True, slots=True)
class Service:
    """The service time distribution."""

    mean_s: float
    cv2: float = 0.0
    """Variance over the square of the mean; 0 of a constant, 1 of an exponential."""


def wait_s(rate: float, service: Service, num_servers: int, share: float) -> float:
    """The `share` quantile of the wait. Infinite in overload."""
    load = rate * service.mean_s
    if load >= num_servers:
        return inf
    if load <= 0:
        return 0.0
    chance = chance_of_wait(load, num_servers)
    if chance <= 1 - share:
        return 0.0
    mean_s = service.mean_s * (1 + service.cv2) / (2 * (num_servers - load))
    return mean_s * log(chance / (1 - share))


def chance_of_wait(load: float, num_servers: int) -> float:
    """Erlang's C, by the recursion of his B. `load` is below `num_servers`."""
    blocked = 1.0
    for number in range(1, num_servers + 1):
        blocked = load * blocked / (number + load * blocked)
    busy = load / num_servers
    return blocked / (1 - busy * (1 - blocked))
