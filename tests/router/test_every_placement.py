"""Properties of every placement, over fleets drawn at random."""

from __future__ import annotations

from hypothesis import assume, given
from hypothesis import strategies as st
from tests.gateway.fleet.known_replicas import NO_PULLS, known, make_replica, view_of
from tests.router.placing import NAMES, placer

from baton.core.ids import Epoch, RequestId
from baton.core.replicas import Capacity, Role
from baton.core.step_times import StepTimes
from baton.router.answer import MAX_PREFILL_CANDIDATES
from baton.router.decode_costs import RUNNING_REQUEST_COST
from baton.router.placement import Placement, PlacementRequest
from baton.router.policies.cost import BASE_PRICE
from baton.router.prompt import Prompt
from baton.router.replicas.view import ReplicaView, View
from baton.router.speeds.speed import MeasuredSpeed

NUM_TOKENS = 256


@st.composite
def replica_views(draw: st.DrawFn, role: Role, number: int) -> ReplicaView:
    max_open = draw(st.integers(0, 3))
    capacity = st.builds(Capacity, max_open=st.integers(0, 3))
    return known(
        make_replica(
            f"{role}-{number}", role=role, max_open=max_open, is_ready=draw(st.booleans())
        ),
        is_connected=draw(st.booleans()),
        num_open=draw(st.integers(0, 3)),
        num_queued_tokens=draw(st.integers(0, 512)),
        num_cached_tokens=draw(st.integers(0, NUM_TOKENS)),
        num_expected_tokens=draw(st.integers(0, NUM_TOKENS)),
        capacity=draw(st.none() | capacity) if role is Role.DECODE else None,
    )


@st.composite
def views(draw: st.DrawFn) -> View:
    return view_of(
        decode=tuple(draw(replica_views(Role.DECODE, n)) for n in range(draw(st.integers(0, 4)))),
        prefill=tuple(draw(replica_views(Role.PREFILL, n)) for n in range(draw(st.integers(0, 4)))),
    )


def requests(view: View) -> st.SearchStrategy[PlacementRequest]:
    epochs = [replica.info.epoch for replica in view.decode]
    lost: st.SearchStrategy[frozenset[Epoch]] = (
        st.frozensets(st.sampled_from(epochs)) if epochs else st.just(frozenset())
    )
    return st.builds(
        PlacementRequest,
        request_id=st.text(max_size=4).map(RequestId),
        num_tokens=st.just(NUM_TOKENS),
        lost=lost,
    )


def can_take(replica: ReplicaView) -> bool:
    limit = replica.info.max_open if replica.capacity is None else replica.capacity.max_open
    return replica.is_connected and replica.info.is_ready and replica.replica.num_open < limit


def decoding(replica: ReplicaView) -> float:
    """Nobody has measured steps: each request there counts as some tokens."""
    num_held = max(replica.num_cached_tokens, replica.num_expected_tokens)
    num_tokens = NUM_TOKENS - num_held + RUNNING_REQUEST_COST * replica.replica.num_open
    return round(replica.candidate.busy_s(0.0) + num_tokens / NO_PULLS.tokens_per_s, 9)


def delay(replica: ReplicaView) -> float:
    """Of the prompt, whose work costs a little more than time, and of those that decode there."""
    num_held = max(replica.num_cached_tokens, replica.num_expected_tokens)
    work_s = max(NUM_TOKENS - num_held, 1) / 1000
    price = BASE_PRICE + replica.candidate.num_running
    return round(replica.candidate.busy_s(0.0) + work_s * price, 6)


@given(view=views(), local=st.integers(0, NUM_TOKENS), data=st.data())
def test_every_placement_is_on_replicas_that_can_take_it(
    view: View, local: int, data: st.DataObject
) -> None:
    request = data.draw(requests(view))
    by_epoch = {replica.info.epoch: replica for replica in (*view.decode, *view.prefill)}

    placement = placer(local).place(request, NAMES, view, now=0.0)
    assert not isinstance(placement, Prompt)

    if placement is None:
        assert not any(can_take(replica) for replica in view.decode)
        return
    chosen = by_epoch[placement.decode.epoch]
    assert can_take(chosen)
    rivals = [r for r in view.decode if can_take(r) and r.info.epoch not in request.lost]
    if rivals:
        assert chosen.info.epoch not in request.lost
        least = delay if not any(one.info.is_ready for one in view.prefill) else decoding
        assert least(chosen) == min(least(replica) for replica in rivals)
    peers = [by_epoch[peer.epoch] for peer in placement.prefill]
    assert all(peer.info.role is Role.PREFILL and peer.info.is_ready for peer in peers)
    assert len(set(placement.prefill)) == len(placement.prefill) <= MAX_PREFILL_CANDIDATES
    assert [delay(peer) for peer in peers] == sorted(delay(peer) for peer in peers)


def here_s(replica: ReplicaView, step_s: float) -> float:
    """Until its first token where it decodes, and what those wait who decode there, but for the
    steps that they make anyway. The prompt is computed in one step."""
    tokens_s = max(NUM_TOKENS - replica.num_cached_tokens, 1) / 1000
    num_running = replica.candidate.num_running
    return replica.candidate.busy_s(0.0) + step_s + tokens_s + num_running * tokens_s


def there_s(replica: ReplicaView) -> float:
    """Likewise by a prefill replica, until it decodes."""
    num_held = max(replica.num_cached_tokens, replica.num_expected_tokens)
    work_s = max(NUM_TOKENS - num_held, 1) / 1000
    return replica.candidate.busy_s(0.0) + work_s + NO_PULLS.latency_s + NO_PULLS.handoff_s


@given(
    peers=st.lists(st.tuples(st.booleans(), st.integers(0, 512), st.integers(0, 256)), max_size=3),
    num_open=st.integers(0, 3),
    num_cached=st.integers(0, NUM_TOKENS),
    local=st.integers(0, NUM_TOKENS),
    step_s=st.none() | st.sampled_from([0.0, 0.03]),
)
def test_a_prompt_travels_exactly_when_much_of_it_is_uncached_or_that_is_sooner(
    peers: list[tuple[bool, int, int]],
    num_open: int,
    num_cached: int,
    local: int,
    step_s: float | None,
) -> None:
    """`step_s`: None, before the decode replica has measured its steps."""
    decode = known(make_replica("d", max_open=9), num_open=num_open, num_cached_tokens=num_cached)
    if step_s is not None:
        times = StepTimes(constant_s=step_s, token_s=0.001, num_prompt_steps=99)
        decode.candidate.speed = MeasuredSpeed(times=times, max_chunk=512)
    prefill = [
        known(
            make_replica(f"p{number}", role=Role.PREFILL, is_ready=is_ready),
            num_queued_tokens=num_queued,
            num_cached_tokens=num_held,
        )
        for number, (is_ready, num_queued, num_held) in enumerate(peers)
    ]
    request = PlacementRequest(request_id=RequestId("r"), num_tokens=NUM_TOKENS)
    placement = placer(local).place(request, NAMES, view_of([decode], prefill), 0.0)
    assert isinstance(placement, Placement)

    ready = [replica for replica in prefill if replica.info.is_ready]
    is_short = NUM_TOKENS - num_cached <= local
    if not ready or not is_short or step_s is None:
        assert bool(placement.prefill) == (bool(ready) and not is_short)
        return
    here, there = here_s(decode, step_s), min(map(there_s, ready))
    assume(abs(here - there) > 1e-9)  # equal ones differ by how they are rounded
    assert bool(placement.prefill) == (here > there)


@given(view=views(), data=st.data())
def test_the_order_in_which_replicas_are_listed_decides_nothing(
    view: View, data: st.DataObject
) -> None:
    request = data.draw(requests(view))
    shuffled = view_of(
        decode=tuple(data.draw(st.permutations(view.decode))),
        prefill=tuple(data.draw(st.permutations(view.prefill))),
    )

    one, other = (placer().place(request, NAMES, each, 0.0) for each in (view, shuffled))

    assert isinstance(one, Placement | None) and isinstance(other, Placement | None)
    assert (one is None) == (other is None)
    if one is not None and other is not None:
        assert (one.decode, one.prefill, one.source) == (other.decode, other.prefill, other.source)
