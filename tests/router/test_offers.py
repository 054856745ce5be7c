"""Prompts in others' lines that are offered to a free replica: by compiled code, the same ones."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial

import pytest
from tests.gateway.fleet.known_replicas import make_replica

from baton.core.ids import Epoch, RequestId
from baton.core.kv_events import KvChange, KvEvent, KvEvents
from baton.core.kv_layout import KvLayout
from baton.core.replicas import Capacity, Role
from baton.kernels.cpu.library import library
from baton.router.cache.kv_index import KvIndex
from baton.router.cache.matches import Matches
from baton.router.cache.prompt_names import PromptNames
from baton.router.offers import MAX_LOOKED_AT, Offers
from baton.router.placement import Placement, PlacementRequest
from baton.router.placer import Placer, Routing
from baton.router.policies.cost import Cost
from baton.router.prompt import Prompt
from baton.router.replicas.candidate import Candidate, Waiting
from baton.router.replicas.pool import KnownReplica, Pool
from baton.router.replicas.view import View, look
from baton.router.speeds.speed import ConstantRate

DRAW = random.Random(11)
TEXTS = [tuple(DRAW.randrange(1000) for _ in range(400)) for _ in range(4)]


def layout(block_size: int) -> KvLayout:
    return KvLayout(
        model_fingerprint=b"model",
        dtype="bfloat16",
        num_layers=1,
        num_kv_heads=1,
        head_dim=64,
        block_size=block_size,
    )


class Fleet:
    """Prefill replicas, each with its own layout, and a decode replica; nothing is pulled."""

    def __init__(self, block_sizes: Sequence[int]) -> None:
        self.pools = {role: Pool() for role in Role}
        self.index = KvIndex()
        self._layout_by_epoch: dict[Epoch, KvLayout] = {}
        for number, block_size in enumerate((16, *block_sizes)):
            role = Role.PREFILL if number else Role.DECODE
            info = make_replica(f"{role}-{number}", role=role, max_open=99)
            info = replace(info, layout=layout(block_size))
            self._layout_by_epoch[info.epoch] = info.layout
            speed = ConstantRate(tokens_per_s=1000.0)
            candidate = Candidate(info.replica_id, speed, epoch=info.epoch)
            replica = KnownReplica(info, candidate)
            replica.is_connected, replica.capacity = True, Capacity(max_open=99)
            self.pools[role].join(replica)
        self.matches = Matches(self.index, self._layout_by_epoch.get)
        self.candidates = self.pools[Role.PREFILL].candidates

    def cache(self, place: int, names: PromptNames, num_tokens: int) -> None:
        info = self.pools[Role.PREFILL].replicas[place].info
        packed = names.under(info.layout).packed[: 16 * (num_tokens // info.layout.block_size)]
        stored = KvEvent(KvChange.STORED, packed)
        self.index.apply(info.epoch, KvEvents(first_sequence=1, events=(stored,), is_snapshot=True))

    def view(self, names: PromptNames) -> View:
        decode, prefill = self.pools[Role.DECODE], self.pools[Role.PREFILL]
        return look(names, self.index, decode, prefill, View().rates)


def usable(
    fleet: Fleet,
    names_by_number: Mapping[int, PromptNames],
    waiting: Sequence[Waiting],
    candidate: Candidate,
) -> list[int]:
    assert candidate.epoch is not None
    every = [names_by_number[one.prompt.number] for one in waiting]
    held = fleet.matches.num_tokens(every, candidate.epoch)
    return [
        max(min(num, one.prompt.num_tokens - 1), one.num_fetched)
        for num, one in zip(held, waiting, strict=True)
    ]


@pytest.mark.skipif(library() is None, reason="nothing is compiled here")
@pytest.mark.parametrize(("num_replicas", "num_waiting"), [(2, 1), (4, 30), (30, 400)])
def test_compiled_code_finds_whom_the_definition_finds(num_replicas: int, num_waiting: int) -> None:
    """Of equal gains, too: prompts have few lengths, and replicas few speeds."""
    found = []
    for _ in range(30):
        fleet = Fleet([16] * num_replicas)
        taker, *others = fleet.candidates
        fleet.cache(0, PromptNames(DRAW.choice(TEXTS)), DRAW.choice([0, 64, 400]))
        names_by_number: dict[int, PromptNames] = {}
        for candidate in fleet.candidates:
            candidate.speed = ConstantRate(tokens_per_s=DRAW.choice([500.0, 1000.0]))
            if DRAW.random() < 0.8:
                sent = Prompt(number=-1, num_tokens=DRAW.randrange(900), arrived_s=0.0)
                candidate.book(sent, 0, 0.0)
        for n in range(num_waiting):
            tokens = DRAW.choice(TEXTS)[: DRAW.choice([40, 100, 400])]
            names = names_by_number[n] = PromptNames(tokens)
            prompt = Prompt(
                number=n,
                num_tokens=len(tokens),
                arrived_s=0.0,
                names=names.under(layout(16)),
                block_size=16,
            )
            waits_for, due_s = DRAW.choice(others), DRAW.choice([0.0, 1.0, 2.0])
            work_s = waits_for.speed.prefill_s(len(tokens), DRAW.choice([0, 0, 90]))
            waits_for.add(Waiting(prompt, waits_for, work_s, due_s, DRAW.choice([0, 0, 0, 32])))

        offers = Offers(fleet.candidates, num_waiting, DRAW.choice([0.0, 0.3]))
        best = offers.best_for(taker, partial(usable, fleet, names_by_number))
        assert taker.epoch is not None
        lookup = fleet.matches.lookup(taker.epoch)
        assert lookup is not None
        number = offers.number_for(taker, lookup)
        assert number is not None

        assert number == (-1 if best is None else best.prompt.number)
        found.append(number)
    assert len(set(found)) > 1
    assert num_waiting == 1 or num_waiting < MAX_LOOKED_AT or -1 not in found


def test_a_prompt_is_found_in_a_cache_that_names_blocks_in_another_way() -> None:
    """It waits for a replica with blocks of 16 tokens, and one with blocks of 32 has it."""
    fleet = Fleet([16, 32])
    first, other = fleet.candidates
    names = PromptNames(TEXTS[0])
    placer = Placer(Routing(Cost(), 0), fleet.matches.num_tokens, fleet.matches.lookup)
    for candidate, num_tokens in ((first, 5000), (other, 9000)):
        candidate.book(Prompt(number=-1, num_tokens=num_tokens, arrived_s=0.0), 0, 0.0)
    asked = PlacementRequest(request_id=RequestId("r"), num_tokens=len(TEXTS[0]))
    waits = placer.place(asked, names, fleet.view(names), 0.0)
    assert isinstance(waits, Prompt) and waits.block_size == 16 and first.waiting
    fleet.cache(1, names, len(TEXTS[0]))
    [sent] = other.open.values()
    other.finished(sent.prompt, 5.0)

    [(prompt, placement)] = placer.served(fleet.view, 5.0)

    assert isinstance(placement, Placement) and prompt is waits
    assert placement.prefill[0].replica_id == other.name
