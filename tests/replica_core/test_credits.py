"""What replicas lend to gateways: never more than there is, and nobody is stuck."""

from __future__ import annotations

from collections import deque

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from baton.replica_core.credits import KEEP_S, RECALL_S, Credit, Credits, floor_of

BUDGET = 64


class Gateways:
    """Gateways that get every update at once, with credits of `BUDGET`."""

    def __init__(self, *names: str, budget: int = BUDGET) -> None:
        self.credits: Credits[str] = Credits(budget)
        self.used = dict.fromkeys(names, 0)
        self.wanted = dict.fromkeys(names, 0)
        self.now = 0.0
        for name in names:
            self.credits.join(name)
        self.settle()

    def settle(self) -> dict[str, int]:
        """What each has when all have heard."""
        for _ in range(3):
            lent = self.credits.lend(self.used, self.now)
            for name, credit in lent.items():
                self.credits.observe(name, demand=self.wanted[name], credit_id=credit.id)
        return {name: credit.num for name, credit in lent.items()}

    def want(self, name: str, num: int) -> None:
        self.wanted[name] = num
        credit = self.credits.lend(self.used, self.now)[name]
        self.credits.observe(name, demand=num, credit_id=credit.id)


def test_a_gateway_alone_has_everything_and_idle_ones_share_it() -> None:
    assert Gateways("a").settle() == {"a": 64}
    assert Gateways("a", "b").settle() == {"a": 32, "b": 32}


def test_who_has_use_for_it_gets_what_idle_ones_had_but_their_floor() -> None:
    gateways = Gateways("busy", "idle")
    gateways.want("busy", 100)

    assert gateways.settle() == {"busy": 63, "idle": 1}


def test_two_that_want_much_share_and_a_small_want_is_met_in_full() -> None:
    gateways = Gateways("a", "b", "small")
    for name, num in (("a", 500), ("b", 90), ("small", 4)):
        gateways.want(name, num)

    assert gateways.settle() == {"a": 30, "b": 30, "small": 4}


def test_what_was_wanted_is_kept_for_a_moment_and_comes_back_within_two_seconds() -> None:
    gateways = Gateways("was busy", "busy")
    gateways.want("was busy", 40)
    gateways.want("busy", 100)
    assert gateways.settle() == {"was busy": 32, "busy": 32}

    gateways.want("was busy", 0)
    assert gateways.settle() == {"was busy": 32, "busy": 32}
    gateways.now += KEEP_S
    assert gateways.settle() == {"was busy": 1, "busy": 63}


def test_what_one_has_in_use_is_not_lent_to_another() -> None:
    gateways = Gateways("a", "b")
    gateways.used["a"] = 30
    gateways.want("b", 100)

    assert gateways.settle()["b"] == 34


def test_what_was_lowered_is_lent_on_when_heard_or_when_not_heard_for_long() -> None:
    gateways = Gateways("deaf", "b")
    gateways.want("b", 100)

    assert gateways.credits.lend(gateways.used, gateways.now)["deaf"].num == 1
    assert gateways.credits.lend(gateways.used, gateways.now)["b"].num == 32
    gateways.now += RECALL_S
    assert gateways.credits.lend(gateways.used, gateways.now)["b"].num == 63


def test_one_that_hears_nothing_keeps_nothing_for_long_however_often_it_is_told() -> None:
    gateways = Gateways("deaf", budget=1024)  # it has all
    others = [f"g{n}" for n in range(12)]
    for number in range(60):  # a new share each tenth of a second
        gateways.now += 0.1
        if number < len(others):
            gateways.credits.join(others[number])
            gateways.used[others[number]] = 0
        for place, name in enumerate(others[: number + 1]):
            gateways.want(name, 20 + 400 * ((number + place) % 5 == 0))

    lent = gateways.credits.lend(gateways.used, gateways.now)

    assert sum(credit.num for name, credit in lent.items() if name != "deaf") > 512


def test_a_dead_gateways_credit_is_back_at_once() -> None:
    gateways = Gateways("dies", "b")
    gateways.used["dies"] = 32
    gateways.want("b", 100)
    gateways.credits.leave("dies")
    del gateways.used["dies"]

    assert gateways.settle() == {"b": 64}


def test_a_word_repeated_or_of_one_that_has_left_changes_nothing() -> None:
    gateways = Gateways("a", "b")
    gateways.want("a", 50)
    before = gateways.settle()
    for _ in range(3):
        gateways.want("a", 50)
    gateways.credits.observe("gone", demand=9, credit_id=99)

    assert gateways.settle() == before


class SlowWires(RuleBasedStateMachine):
    """Gateways that send by what they last heard, words and requests being late both ways."""

    NAMES = ("a", "b")

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0
        self.credits: Credits[str] = Credits(BUDGET)
        self.limit: dict[str, Credit] = {}
        self.down: dict[str, deque[Credit]] = {}
        self.up: dict[str, deque[tuple[int, int, int]]] = {}
        """Requests sent, what waits, and the credit gone by."""
        self.open: dict[str, int] = {}
        self.arrived: dict[str, int] = {}
        self.line: dict[str, int] = {}
        for name in self.NAMES:
            self.join(name)
        self.lend(0.0)
        for name in self.NAMES:
            self.gateway_hears(name)
            self.replica_hears(name)

    @rule(name=st.sampled_from(NAMES))
    def join(self, name: str) -> None:
        if name not in self.open:
            self.credits.join(name)
            self.limit[name] = Credit(0, 0)
            self.down[name], self.up[name] = deque(), deque()
            self.open[name] = self.arrived[name] = self.line[name] = 0

    @rule(name=st.sampled_from(NAMES))
    def die(self, name: str) -> None:
        if name in self.open:
            self.credits.leave(name)
            for known in (self.limit, self.down, self.up, self.open, self.arrived, self.line):
                del known[name]

    @rule(name=st.sampled_from(NAMES), num=st.sampled_from((0, 20, 100)))
    def queue(self, name: str, num: int) -> None:
        if name in self.open:
            self.line[name] = num
            self.send(name)

    @rule(name=st.sampled_from(NAMES))
    def gateway_hears(self, name: str) -> None:
        if self.down.get(name):
            self.limit[name] = self.down[name].popleft()
            self.send(name)

    def send(self, name: str) -> None:
        room = max(0, self.limit[name].num - self.open[name])
        num = min(room, self.line[name])
        self.open[name] += num
        self.line[name] -= num
        self.up[name].append((num, self.line[name], self.limit[name].id))

    @rule(name=st.sampled_from(NAMES))
    def replica_hears(self, name: str) -> None:
        if self.up.get(name):
            num, waiting, credit_id = self.up[name].popleft()
            self.arrived[name] += num
            self.credits.observe(name, demand=waiting, credit_id=credit_id)
            self.lend(0.0)

    @rule(name=st.sampled_from(NAMES), share=st.floats(0, 1))
    def finish(self, name: str, share: float) -> None:
        num = round(self.arrived.get(name, 0) * share)
        if num:
            self.arrived[name] -= num
            self.open[name] -= num

    @rule(seconds=st.floats(0, RECALL_S / 50))
    def lend(self, seconds: float) -> None:
        self.now += seconds
        for name, credit in self.credits.lend(self.arrived, self.now).items():
            last = self.down[name][-1] if self.down[name] else self.limit[name]
            if credit.id != last.id:
                self.down[name].append(credit)

    @invariant()
    def never_more_is_open_than_there_is_but_for_floors(self) -> None:
        num_floors = len(self.open) * floor_of(BUDGET)
        assert sum(self.open.values()) <= BUDGET + num_floors

    def teardown(self) -> None:
        """When all has been heard and finished, most is lent, and nobody is stuck."""
        for _ in range(12):
            for name in self.open:
                while self.down[name] or self.up[name]:
                    self.gateway_hears(name)
                    self.replica_hears(name)
                self.finish(name, 1.0)
            self.now += KEEP_S
            self.lend(0.0)
        for name in self.open:
            assert self.limit[name].num >= 1
        if self.open:
            assert sum(limit.num for limit in self.limit.values()) >= BUDGET * 3 // 4


TestSlowWires = SlowWires.TestCase
TestSlowWires.settings = settings(max_examples=30, stateful_step_count=40, deadline=None)
