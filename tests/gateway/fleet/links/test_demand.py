"""What a gateway tells a replica of what waits, and of the credit that it goes by."""

from __future__ import annotations

from baton.core.replicas import Demand
from baton.gateway.fleet.links.demand import DemandReporter


async def test_each_credit_is_confirmed_but_the_first_of_a_stream_on_which_nothing_waits() -> None:
    said: list[Demand] = []
    news = DemandReporter(said.append)

    news.go_by(7)
    assert said == []
    news.go_by(8)
    news.want(3, 0)
    news.restart()
    news.go_by(2)

    assert said == [
        Demand(credit_id=8),
        Demand(num_requests=4, credit_id=8),
        Demand(num_requests=4, credit_id=2),
    ]
