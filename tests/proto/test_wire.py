"""Whatever one process says, the other hears: every message survives being written as protobuf."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import pytest
from google.protobuf.message import Message
from hypothesis import given
from hypothesis import strategies as st

from baton.core.ids import Epoch, ReplicaId, RequestId, TransferId
from baton.core.kv_layout import ITEM_BYTES, WIDE, KvLayout, SideCache
from baton.core.messages import (
    CachePoint,
    GenerateRequest,
    Pooling,
    PrefillDone,
    PrefillGranted,
    PrefillRequest,
    PullOffered,
    PullRequest,
    Receipt,
    TokenUpdate,
)
from baton.core.replicas import Capacity, Demand, ReplicaAddress
from baton.core.sampling import FinishReason, Grammar, GrammarKind, SamplingParams, TokenLogprob
from baton.core.step_times import StepTimes
from baton.proto import (
    capacity_wire,
    generate_wire,
    kv_pb2,
    message_parts_wire,
    prefill_wire,
    pull_wire,
    token_update_wire,
)
from baton.proto import replica_pb2 as pb
from baton.proto.kv_wire import layout_from_proto, layout_to_proto
from baton.proto.sampling_wire import sampling_from_proto, sampling_to_proto

T = TypeVar("T")
M = TypeVar("M", bound=Message)

# Text that may travel: protobuf strings are UTF-8, which lone surrogates are not.
texts = st.text(st.characters(codec="utf-8"), max_size=8)
counts = st.integers(0, 2**32 - 1)
big_counts = st.integers(0, 2**64 - 1)
sizes = st.integers(1, 2**16)
doubles = st.floats(allow_nan=False)
floats = st.floats(allow_nan=False, width=32)  # logprobs are float32 on the wire
tokens = st.lists(counts, max_size=5).map(tuple)
finish_reasons = st.none() | st.sampled_from(FinishReason)

grammars = st.builds(Grammar, st.sampled_from(GrammarKind), texts)
priorities = st.integers(-(2**31), 2**31 - 1)
poolings = st.none() | st.sampled_from(Pooling)

samplings = st.builds(
    SamplingParams,
    temperature=doubles,
    top_k=counts,
    top_p=doubles,
    min_p=doubles,
    repetition_penalty=doubles,
    presence_penalty=doubles,
    frequency_penalty=doubles,
    typical_p=doubles,
    logit_bias=st.lists(st.tuples(counts, doubles), max_size=3).map(tuple),
    allowed_token_ids=tokens,
    bad_words=st.lists(tokens, max_size=3).map(tuple),
    grammar=st.none() | grammars,
    max_tokens=counts,
    min_tokens=counts,
    stop_token_ids=tokens,
    ignore_eos=st.booleans(),
    num_logprobs=st.none() | counts,
    num_prompt_logprobs=st.none() | counts,
    seed=big_counts,
    choice=counts,
)
logprobs = st.builds(
    TokenLogprob, counts, floats, st.lists(st.tuples(counts, floats), max_size=3).map(tuple)
)
addresses = st.builds(
    ReplicaAddress, replica_id=texts.map(ReplicaId), epoch=texts.map(Epoch), address=texts
)
layouts = st.builds(
    KvLayout,
    model_fingerprint=st.binary(max_size=8),
    dtype=st.sampled_from(sorted(ITEM_BYTES)),
    num_layers=sizes,
    num_kv_heads=sizes,
    head_dim=sizes,
    block_size=sizes,
    first_kv_head=counts,
) | st.builds(
    KvLayout,
    model_fingerprint=st.binary(max_size=8),
    dtype=st.sampled_from(WIDE),
    num_layers=sizes,
    num_kv_heads=st.just(1),
    head_dim=sizes,
    block_size=sizes,
    num_vectors=st.just(1),
    side_caches=st.builds(
        SideCache, name=texts, layers=st.just((0,)), width=sizes, dtype=st.sampled_from(WIDE)
    ).map(lambda group: (group,)),
)
cache_points = st.lists(
    st.builds(CachePoint, counts, st.integers(0, 2**40).map(lambda ms: ms / 1e3)), max_size=3
).map(tuple)
generates = st.builds(
    GenerateRequest,
    request_id=texts.map(RequestId),
    attempt=counts,
    prompt=tokens,
    output=tokens,
    sampling=samplings,
    salt=st.binary(max_size=8),
    adapter=texts,
    prefill=st.lists(addresses, max_size=2).map(tuple),
    priority=priorities,
    pooling=poolings,
    tenant=texts,
    cache_points=cache_points,
    source=st.none() | addresses,
    is_moving=st.booleans(),
    time_left_ms=st.none() | big_counts,
)
prefills = st.builds(
    PrefillRequest,
    request_id=texts.map(RequestId),
    transfer_id=texts.map(TransferId),
    receiver_epoch=texts.map(Epoch),
    layout=layouts,
    prompt=tokens,
    output=tokens,
    sampling=samplings,
    salt=st.binary(max_size=8),
    adapter=texts,
    priority=priorities,
    tenant=texts,
    cache_points=cache_points,
    source=st.none() | addresses,
    gateway_epoch=st.none() | st.just(Epoch("g")),
    time_left_ms=big_counts,
)


def _two_ranks(layout: KvLayout) -> tuple[range, ...]:
    start, stop = layout.first_kv_head, layout.stop_kv_head
    if stop - start < 2 or stop >= 2**32:
        return ()
    return range(start, start + 1), range(start + 1, stop)


grants = st.builds(
    lambda num_cached, num_left, is_split, layout, **ids: PrefillGranted(
        num_tokens=num_cached + num_left,
        num_cached=num_cached,
        layout=layout,
        head_runs=_two_ranks(layout) if is_split else (),
        **ids,
    ),
    is_split=st.booleans(),
    num_cached=st.integers(0, 2**31),
    num_left=st.integers(1, 2**31 - 1),
    transfer_id=texts.map(TransferId),
    sender_epoch=texts.map(Epoch),
    layout=layouts,
)
pulls = st.builds(
    PullRequest,
    transfer_id=texts.map(TransferId),
    receiver_epoch=texts.map(Epoch),
    layout=layouts,
    tokens=tokens,
    salt=st.binary(max_size=8),
    num_held=counts,
    request_id=st.none() | st.text(st.characters(codec="utf-8"), min_size=1).map(RequestId),
    attempt=counts,
    tenant=texts,
    time_left_ms=big_counts,
)
offers = st.builds(
    lambda layout, is_split, **told: PullOffered(
        layout=layout, head_runs=_two_ranks(layout) if is_split else (), **told
    ),
    is_split=st.booleans(),
    transfer_id=texts.map(TransferId),
    sender_epoch=texts.map(Epoch),
    layout=layouts,
    num_tokens=counts,
)
dones = st.builds(
    PrefillDone,
    transfer_id=texts.map(TransferId),
    token=counts,
    logprob=st.none() | logprobs,
    queue_ms=doubles,
    prefill_ms=doubles,
    num_computed=counts,
)
receipts = st.builds(
    Receipt,
    decode_replica=texts,
    prefill_replica=texts,
    placement=texts,
    adapter=texts,
    attempts=counts,
    prompt_tokens=counts,
    cached_tokens=counts,
    cache_write_tokens=counts,
    pulled_tokens=counts,
    computed_tokens=counts,
    output_tokens=counts,
    drafted_tokens=counts,
    accepted_tokens=counts,
    kv_bytes=big_counts,
    transport=texts,
    queue_ms=doubles,
    prefill_ms=doubles,
    transfer_ms=doubles,
    decode_ms=doubles,
    notes=st.lists(texts, max_size=3).map(tuple),
)
updates = st.builds(
    TokenUpdate,
    request_id=texts.map(RequestId),
    attempt=counts,
    tokens=tokens,
    logprobs=st.lists(logprobs, max_size=3).map(tuple),
    prompt_logprobs=st.lists(logprobs, max_size=3).map(tuple),
    embedding=st.lists(floats, max_size=3).map(tuple),
    finish_reason=finish_reasons,
    receipt=st.none() | receipts,
)
demands = st.builds(Demand, num_requests=counts, num_tokens=big_counts, credit_id=big_counts)
step_times = st.builds(
    StepTimes,
    constant_s=floats,
    token_s=floats,
    pair_s=floats,
    context_s=floats,
    request_s=floats,
    spread=floats,
    num_prompt_steps=big_counts,
    num_decode_steps=big_counts,
    age_s=floats,
)
capacities = st.builds(
    Capacity,
    max_open=counts,
    credit_tokens=big_counts,
    credit_id=big_counts,
    num_context_tokens=big_counts,
    slowness=st.floats(0.1, 100),
    step_times=st.none() | step_times,
    num_running=counts,
    num_waiting=counts,
    num_queued_tokens=big_counts,
    num_blocks=big_counts,
    num_free_blocks=big_counts,
    is_draining=st.booleans(),
)


def sent(message: M) -> M:
    """The message as the peer parses it."""
    return type(message).FromString(message.SerializeToString())


def assert_survives(value: T, to_proto: Callable[[T], M], from_proto: Callable[[M], T]) -> None:
    assert from_proto(sent(to_proto(value))) == value


def test_every_field_of_sampling_travels_by_its_name() -> None:
    fields = {field.name for field in pb.Sampling.DESCRIPTOR.fields}

    assert fields == set(SamplingParams.__dataclass_fields__)


@given(samplings)
def test_sampling_params(value: SamplingParams) -> None:
    assert_survives(value, sampling_to_proto, sampling_from_proto)


@given(logprobs)
def test_a_logprob(value: TokenLogprob) -> None:
    assert_survives(
        value, message_parts_wire.logprob_to_proto, message_parts_wire.logprob_from_proto
    )


@given(addresses)
def test_the_address_of_a_replica(value: ReplicaAddress) -> None:
    assert_survives(
        value, message_parts_wire.address_to_proto, message_parts_wire.address_from_proto
    )


@given(layouts)
def test_a_layout(value: KvLayout) -> None:
    assert_survives(value, layout_to_proto, layout_from_proto)


def test_a_peer_that_says_nothing_of_vectors_has_keys_and_values() -> None:
    older = kv_pb2.KvLayout(
        dtype="float32", num_layers=1, num_kv_heads=2, head_dim=4, block_size=16
    )

    assert layout_from_proto(older).num_vectors == 2


@given(generates)
def test_a_request_to_generate(value: GenerateRequest) -> None:
    assert_survives(value, generate_wire.generate_to_proto, generate_wire.generate_from_proto)


def test_no_time_left_is_not_the_same_as_no_limit() -> None:
    late = GenerateRequest(request_id=RequestId("r"), attempt=1, prompt=(1,), time_left_ms=0)

    assert_survives(late, generate_wire.generate_to_proto, generate_wire.generate_from_proto)


@given(prefills, texts.map(Epoch))
def test_a_request_to_prefill_also_says_whom_it_means(value: PrefillRequest, peer: Epoch) -> None:
    message = sent(prefill_wire.prefill_to_proto(value, peer))

    assert prefill_wire.prefill_from_proto(message) == value
    assert message.sender_epoch == peer


@pytest.mark.parametrize("stops", [(1, 3), (1, 1, 2), (2, 1), (1,)])
def test_ranks_that_do_not_split_the_heads_of_a_layout_are_none(stops: tuple[int, ...]) -> None:
    layout = KvLayout(
        model_fingerprint=b"", dtype="int8", num_layers=1, num_kv_heads=2, head_dim=8, block_size=4
    )
    granted = PrefillGranted(
        transfer_id=TransferId("kv"),
        sender_epoch=Epoch("p"),
        layout=layout,
        num_tokens=1,
        num_cached=0,
        head_runs=(range(1), range(1, 2)),
    )
    message = prefill_wire.granted_to_proto(granted)
    assert [*message.head_stops] == [1, 2]
    message.head_stops[:] = stops

    assert prefill_wire.granted_from_proto(message).head_runs == ()


@given(grants)
def test_a_grant(value: PrefillGranted) -> None:
    assert_survives(value, prefill_wire.granted_to_proto, prefill_wire.granted_from_proto)


@given(pulls, texts.map(Epoch))
def test_a_request_to_pull_also_says_whom_it_means(value: PullRequest, peer: Epoch) -> None:
    message = sent(pull_wire.pull_to_proto(value, peer))

    assert pull_wire.pull_from_proto(message) == value
    assert message.sender_epoch == peer


@given(offers)
def test_an_offer(value: PullOffered) -> None:
    assert_survives(value, pull_wire.offered_to_proto, pull_wire.offered_from_proto)


@given(dones)
def test_a_first_token(value: PrefillDone) -> None:
    assert_survives(value, prefill_wire.done_to_proto, prefill_wire.done_from_proto)


@given(receipts)
def test_a_receipt(value: Receipt) -> None:
    assert_survives(value, token_update_wire.receipt_to_proto, token_update_wire.receipt_from_proto)


@given(updates)
def test_an_update(value: TokenUpdate) -> None:
    assert_survives(value, token_update_wire.update_to_proto, token_update_wire.update_from_proto)


@given(demands)
def test_a_demand(value: Demand) -> None:
    assert_survives(value, capacity_wire.demand_to_proto, capacity_wire.demand_from_proto)


@given(capacities)
def test_a_capacity(value: Capacity) -> None:
    assert_survives(value, capacity_wire.capacity_to_proto, capacity_wire.capacity_from_proto)


@given(st.floats(-1e30, 0))
def test_a_logprob_arrives_as_the_nearest_float32(logprob: float) -> None:
    arrived = message_parts_wire.logprob_from_proto(
        sent(message_parts_wire.logprob_to_proto(TokenLogprob(1, logprob)))
    )

    assert arrived.logprob == pytest.approx(logprob, rel=2**-23, abs=1e-44)
