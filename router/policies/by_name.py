"""The policies that a configuration may name."""

from __future__ import annotations

from collections.abc import Callable

from baton.core.errors import InvalidConfig
from baton.router.policies.additive import Additive
from baton.router.policies.cost import Cost, CostWeights
from baton.router.policies.least_requests import LeastRequests
from baton.router.policies.least_tokens import LeastTokens
from baton.router.policies.longest_match import LongestMatch
from baton.router.policies.new_tokens_times_batch import NewTokensTimesBatch
from baton.router.policies.prefix_hash import PrefixHash
from baton.router.policies.random_choice import RandomChoice
from baton.router.policies.round_robin import RoundRobin
from baton.router.policies.routing_policy import RoutingPolicy
from baton.router.policies.session_sticky import SessionSticky
from baton.router.policies.sticky_until_saturated import StickyUntilSaturated
from baton.router.policies.two_choice import TwoChoice

POLICIES: dict[str, Callable[[], RoutingPolicy]] = {
    "random": RandomChoice,
    "round-robin": RoundRobin,
    "least-requests": LeastRequests,
    "least-tokens": LeastTokens,
    "session-sticky": SessionSticky,
    "prefix-hash": PrefixHash,
    "longest-match": LongestMatch,
    "sticky-until-saturated": StickyUntilSaturated,
    "additive": Additive,
    "new-tokens-times-batch": NewTokensTimesBatch,
    "two-choice": TwoChoice,
    "cost": Cost,
}
ABLATIONS: dict[str, Callable[[], RoutingPolicy]] = {
    "cost-at-once": lambda: Cost(CostWeights(is_late=False)),
    "cost-without-price": lambda: Cost(CostWeights(scarcity=0.0)),
    "cost-without-balance": lambda: Cost(CostWeights(balance=0.0)),
    "cost-without-evenness": lambda: Cost(CostWeights(evenness=0.0)),
    "cost-without-copies": lambda: Cost(CostWeights(shares_hot=False)),
    "cost-without-slos": lambda: Cost(CostWeights(knows_objectives=False)),
}
"""The default with one of its parts taken away: to see what each is good for."""


def policy(name: str) -> RoutingPolicy:
    """A new one, without memory. Raises InvalidConfig that names all there are."""
    try:
        return {**POLICIES, **ABLATIONS}[name]()
    except KeyError:
        raise InvalidConfig(f"policy: {name!r}: give one of {', '.join(POLICIES)}") from None
