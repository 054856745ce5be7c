from __future__ import annotations

from collections import Counter

import pytest

from baton.core.chaos import POINTS, Chaos, ChaosRule, Fault

DROPS = ChaosRule(at="transfer.piece", fault=Fault.DROP, rate=0.3)
CUTS = ChaosRule(at="transfer.piece", fault=Fault.CUT, rate=0.3)
FULL = ChaosRule(at="pool.reserve", fault=Fault.FULL, rate=0.5)


def drawn(chaos: Chaos, point: str, num_times: int = 200) -> list[Fault | None]:
    rules = [chaos.draw(point) for _ in range(num_times)]
    return [rule.fault if rule else None for rule in rules]


def test_equal_seeds_make_equal_faults_and_others_make_others() -> None:
    one, same = (Chaos((DROPS, CUTS), seed=7, name="decode-1") for _ in range(2))
    other_seed, other_name = (
        Chaos((DROPS, CUTS), seed=8, name="decode-1"),
        Chaos((DROPS, CUTS), seed=7),
    )

    faults = drawn(one, "transfer.piece")

    assert faults == drawn(same, "transfer.piece")
    assert faults != drawn(other_seed, "transfer.piece")
    assert faults != drawn(other_name, "transfer.piece")


def test_what_one_point_sees_does_not_depend_on_how_often_others_are_passed() -> None:
    quiet, busy = Chaos((DROPS, FULL), seed=7), Chaos((DROPS, FULL), seed=7)
    drawn(busy, "pool.reserve", 50)

    assert drawn(quiet, "transfer.piece") == drawn(busy, "transfer.piece")


def test_a_rule_applies_as_often_as_its_rate_says_and_no_more_than_its_limit() -> None:
    often = Chaos((ChaosRule(at="kv_events", fault=Fault.DROP, rate=0.25),), seed=1)
    thrice = Chaos((ChaosRule(at="kv_events", fault=Fault.DROP, rate=1.0, max_times=3),), seed=1)

    num_struck = sum(fault is not None for fault in drawn(often, "kv_events", 10_000))

    assert 2_300 < num_struck < 2_700  # four standard deviations of the binomial are 173
    assert drawn(thrice, "kv_events", 5) == [Fault.DROP] * 3 + [None] * 2
    assert thrice.injected == Counter({("kv_events", Fault.DROP): 3})


def test_a_rule_that_kills_ends_the_process() -> None:
    killed: list[str] = []
    rule = ChaosRule(at="transfer.open", fault=Fault.KILL, rate=1.0)
    chaos = Chaos((rule,), kill=lambda: killed.append("kill"))

    chaos.draw("transfer.open")

    assert killed == ["kill"]


def test_no_rules_end_the_chaos() -> None:
    chaos = Chaos((FULL,), seed=1)
    drawn(chaos, "pool.reserve")

    chaos.set((), seed=1)

    assert not chaos.is_on
    assert drawn(chaos, "pool.reserve") == [None] * 200
    assert chaos.as_metrics()["chaos_faults_total"] > 0


@pytest.mark.parametrize(
    ("rule", "message"),
    [
        ({"at": "transfer.pieces", "fault": Fault.DROP}, "no point is called 'transfer.pieces'"),
        ({"at": "pool.reserve", "fault": Fault.DROP}, "drop cannot happen at pool.reserve"),
        ({"at": "kv_events", "fault": Fault.DROP, "rate": 0}, r"rate must be in \(0, 1\]"),
        ({"at": "kv_events", "fault": Fault.DELAY, "delay_s": -1}, "delay_s must be between"),
        ({"at": "kv_events", "fault": Fault.DROP, "max_times": 0}, "max_times must be at least 1"),
    ],
)
def test_a_rule_that_cannot_be_is_refused(rule: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        ChaosRule(**rule)  # type: ignore[arg-type]


@pytest.mark.parametrize("point", POINTS)
def test_every_point_has_faults(point: str) -> None:
    assert POINTS[point]
