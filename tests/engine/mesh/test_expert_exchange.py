"""Rows go to whoever holds their experts, and come back to whoever sent them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.engine.rank_processes import HOST
from torch import Tensor

from baton.engine.mesh.expert_exchange import MAX_FIXED_TOKENS, ExpertExchange, weighted
from baton.engine.mesh.mesh import Mesh
from baton.engine.mesh.ranks import RankGroup, Rendezvous, join, listen
from baton.engine.mesh.split import Share

NUM_RANKS, NUM_SLOTS, WIDTH = 3, 2, 5
"""Slots of one rank."""
MANY = MAX_FIXED_TOKENS["cpu"] + 1
Choices = list[list[int]]
"""Slots, of one token each."""
token = st.permutations(range(NUM_RANKS * NUM_SLOTS)).map(lambda slots: slots[:2])
"""No expert is chosen twice."""
passes = st.lists(st.lists(token, max_size=6), min_size=NUM_RANKS, max_size=NUM_RANKS)


@pytest.fixture(scope="module")
def groups() -> Iterator[list[RankGroup]]:
    """Of ranks that are threads of this process."""
    listener = listen(HOST)
    mesh = Mesh(data=NUM_RANKS, expert=NUM_RANKS)
    meeting = Rendezvous(host=HOST, port=listener.getsockname()[1], mesh=mesh, backend="gloo")
    with ThreadPoolExecutor(NUM_RANKS) as threads:
        joining = [
            threads.submit(join, meeting, rank, listener if rank == 0 else None)
            for rank in range(NUM_RANKS)
        ]
        found = [each.result().expert for each in joining]
    assert all(isinstance(group, RankGroup) for group in found)
    yield [group for group in found if isinstance(group, RankGroup)]


def on_all(groups: list[RankGroup], work: Callable[[RankGroup], Tensor]) -> list[Tensor]:
    with ThreadPoolExecutor(len(groups)) as threads:
        return list(threads.map(work, groups))


def some_rows(rank: int, count: int) -> Tensor:
    return torch.randn(count, WIDTH, generator=torch.Generator().manual_seed(rank))


def expert(rows: Tensor, slots: Tensor) -> Tensor:
    """Unlike that of any other slot."""
    return rows * (slots[:, None] + 1) + slots[:, None]


@pytest.mark.parametrize("max_tokens", [MANY, 6], ids=["counted", "fixed"])
@settings(max_examples=30, deadline=None)
@given(passes)
def test_every_pair_is_computed_by_its_slot_however_uneven_the_load(
    groups: list[RankGroup], max_tokens: int, choices: list[Choices]
) -> None:
    def compute(group: RankGroup) -> Tensor:
        first = group.rank * NUM_SLOTS
        slots = torch.tensor(choices[group.rank], dtype=torch.int32).view(-1, 2)
        x = some_rows(group.rank, len(slots))
        exchange = ExpertExchange(group, Share(0, 1), max_tokens)
        return exchange(x, slots, NUM_SLOTS, lambda rows, own: expert(rows, own + first))

    for rank, outs in enumerate(on_all(groups, compute)):
        slots = torch.tensor(choices[rank]).view(-1, 2)
        rows = some_rows(rank, len(slots)).repeat_interleave(2, dim=0)
        expected = expert(rows, slots.flatten()).view(-1, 2, WIDTH)
        assert torch.equal(outs, expected)


@pytest.mark.parametrize("max_tokens", [MANY, 4], ids=["counted", "fixed"])
def test_what_a_token_gives_is_the_same_to_the_bit_wherever_its_experts_are(
    groups: list[RankGroup], max_tokens: int
) -> None:
    """Each slot's expert is another one's after the slots were turned by one."""
    num_all = NUM_RANKS * NUM_SLOTS
    shares = torch.rand(4, 3, generator=torch.Generator().manual_seed(7))
    experts = torch.stack([torch.randperm(num_all)[:3] for _ in range(4)])

    def compute(group: RankGroup, turn: int) -> Tensor:
        first = group.rank * NUM_SLOTS
        exchange = ExpertExchange(group, Share(0, 1), max_tokens)
        slots = (experts + turn) % num_all
        outs = exchange(
            some_rows(group.rank, 4),
            slots,
            NUM_SLOTS,
            lambda rows, own: expert(rows, (own + first - turn) % num_all),
        )
        return weighted(outs, shares)

    placed = on_all(groups, lambda group: compute(group, 0))
    turned = on_all(groups, lambda group: compute(group, 1))

    for one, other in zip(placed, turned, strict=True):
        assert torch.equal(one, other)


@given(st.integers(0, 40), st.integers(1, 5))
def test_ranks_that_have_the_same_tokens_send_each_of_them_once(num_tokens: int, size: int) -> None:
    sent = [
        token
        for rank in range(size)
        for token in range(num_tokens)[Share(rank, size).run(num_tokens)]
    ]

    assert sent == list(range(num_tokens))
