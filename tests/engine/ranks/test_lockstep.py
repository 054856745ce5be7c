"""When engines that share experts compute, join, sleep and leave."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, cast

from baton.engine.batch.batch import Chunk
from baton.engine.passes.echo import EchoRunner, echo_info
from baton.engine.ranks.lockstep import MAX_TICK_S, TICK_S, Intent, LockstepRunner

PROMPT = Chunk(range(5), 0, [0, 1], 1)
IDLE, LEAVING = (Intent.IDLE, 0), (Intent.LEAVING, 0)


@dataclass
class Leads:
    """This engine's and one other, which does as it is told."""

    others: list[tuple[Intent, int]]
    heard: list[tuple[int, ...]] = field(default_factory=list)

    def gather(self, words: array[int]) -> list[list[int]]:
        self.heard.append(tuple(words))
        return [list(words), [int(number) for number in self.others.pop(0)]]


class Engine(EchoRunner):
    def __init__(self) -> None:
        super().__init__(echo_info(), num_blocks=8, block_size=4)
        self.did: list[str] = []

    def forward(self, chunks: Sequence[Chunk], *hooks: Any) -> Any:
        self.did.append("pass")
        return super().forward(chunks, *hooks)

    def expect(self, max_tokens: int) -> None:
        self.did.append(f"expect {max_tokens}")

    def join(self) -> None:
        self.did.append("join")


def lockstep(*others: tuple[Intent, int]) -> tuple[LockstepRunner, Engine, Leads]:
    own, leads = Engine(), Leads(list(others))
    return LockstepRunner(cast(Any, own), cast(Any, leads)), own, leads


def test_a_pass_is_told_with_its_tokens_and_the_largest_is_known_before_it() -> None:
    runner, own, leads = lockstep(IDLE, (Intent.PASS, 9))

    runner.forward([PROMPT])
    runner.forward([PROMPT])

    assert leads.heard == [(Intent.PASS, 5)] * 2
    assert own.did == ["expect 5", "pass", "expect 9", "pass"]


def test_who_has_nothing_to_compute_joins_those_who_have() -> None:
    runner, own, _ = lockstep((Intent.PASS, 3), IDLE, LEAVING)

    assert [runner.join_pass() for _ in range(3)] == [True, False, False]
    assert own.did == ["expect 3", "join"]


def test_who_leaves_joins_until_all_leave() -> None:
    runner, own, leads = lockstep((Intent.PASS, 3), IDLE, (Intent.PASS, 1), LEAVING)

    runner.close()

    assert leads.heard == [LEAVING] * 4
    assert own.did == ["expect 3", "join", "expect 1", "join"]


def test_engines_meet_less_often_the_longer_nobody_computes() -> None:
    runner, _, _ = lockstep(*[IDLE] * 1000, (Intent.PASS, 1))
    ticks = []
    for _ in range(1000):
        ticks.append(runner.tick_s)
        runner.join_pass()

    assert ticks == sorted(ticks)
    assert (ticks[0], ticks[-1]) == (TICK_S, MAX_TICK_S)
    runner.join_pass()
    assert runner.tick_s == TICK_S
