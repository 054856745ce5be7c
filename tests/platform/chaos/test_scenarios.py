from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from baton.core.chaos import ChaosRule, Fault
from baton.core.errors import InvalidConfig, Unavailable
from baton.core.ids import Epoch
from baton.platform.chaos.live import Target
from baton.platform.chaos.load import Tokens, make_prompts
from baton.platform.chaos.run import ScenarioRun
from baton.platform.chaos.scenario import (
    Load,
    ProcessFault,
    Scenario,
    bundled_scenarios,
    read_scenario,
)
from baton.platform.config.deployment import DeploymentConfig, override
from baton.platform.faults.config import ChaosConfig

QUICK = Load(concurrency=2, num_prompts=3, prompt_words=8, shared_words=2, max_tokens=4)


class FakeDeployment:
    """Answers by the prompt alone, unless told to misbehave."""

    def __init__(self, **faults: Any) -> None:
        self.faults = faults
        self.num_asked = 0
        self.told: list[tuple[str, int, bool]] = []
        self.num_gateways_killed = 0
        self.gateways_told: list[int] = []
        self.num_faults = 0

    async def ask(self, prompt: str, seed: int, load: Load, *, salt: str = "") -> Tokens:
        await asyncio.sleep(0)
        self.num_asked += 1
        is_disturbed = self.num_asked > QUICK.num_prompts
        if is_disturbed and "error" in self.faults:
            raise Unavailable(self.faults["error"])
        wrong = int(is_disturbed and self.faults.get("is_wrong", False))
        return (len(prompt), seed, wrong)

    async def targets(self) -> list[Target]:
        return [Target("decode-1", "decode", Epoch("d"), "host:1")]

    async def unsettle(
        self,
        target: Target,
        rules: Any,
        seed: int,
        *,
        is_killed: bool = False,
        stopped_s: float = 0,
    ) -> None:
        if self.faults.get("is_refused"):
            raise Unavailable("decode-1: chaos is off")
        self.told.append((target.replica_id, len(rules), is_killed))

    async def unsettle_gateway(self, rules: Any, seed: int) -> Epoch:
        self.gateways_told.append(len(rules))
        return Epoch(f"g{len(self.gateways_told) % 2}")  # two that share a port

    async def kill_gateway(self) -> None:
        self.num_gateways_killed += 1

    async def leaks(self) -> dict[str, Any]:
        held = self.faults.get("leased", 0)
        row = {"replica": "decode-1", "live": 0, "leased": held, "quarantined": 0}
        return {"violations": [], "unreachable": [], "replicas": [row]}

    async def status(self) -> dict[str, Any]:
        sampled = self.faults.get("sampled", 0)
        row = {
            "replica": "decode-1",
            "is_reachable": True,
            "metrics": {"tokens_sampled_total": sampled},
        }
        return {"pools": {"decode": [row]}}


def scenario(**changes: Any) -> Scenario:
    planned: dict[str, Any] = {"what": "a test", "duration_s": 0.3, "settle_s": 0.1}
    return Scenario(**{**planned, "load": QUICK, **changes})


async def outcome_of(deployment: FakeDeployment, planned: Scenario) -> dict[str, bool]:
    run = ScenarioRun(planned, deployment, lambda text: None)  # type: ignore[arg-type]
    return {invariant.name: invariant.holds for invariant in (await run.run()).invariants}


async def test_a_deployment_that_answers_as_before_and_holds_nothing_passes() -> None:
    deployment = FakeDeployment()

    process_faults = (
        ProcessFault(do="kill", at_s=0.1),
        ProcessFault(do="kill", role="gateway", at_s=0.1),
    )
    held = await outcome_of(deployment, scenario(process_faults=process_faults))

    assert all(held.values())
    assert deployment.num_gateways_killed == 1
    assert ("decode-1", 0, True) in deployment.told
    assert deployment.told[-1] == ("decode-1", 0, False)  # the chaos is ended


async def test_gateways_are_told_rules_for_them_and_the_end_of_these() -> None:
    deployment, other = FakeDeployment(), FakeDeployment()
    rules = (ChaosRule(at="registry.watch", fault=Fault.CUT, rate=0.5),)

    await outcome_of(deployment, scenario(rules=rules, duration_s=0.8))
    await outcome_of(other, scenario(rules=(ChaosRule(at="kv_events", fault=Fault.CUT),)))

    num_told = deployment.gateways_told.count(1)
    assert num_told >= 2
    assert deployment.gateways_told[num_told:] == [0, 0]  # each of the two
    assert other.gateways_told == []


async def test_a_port_that_refuses_for_a_while_keeps_no_gateway_from_the_end_of_its_chaos() -> None:
    class Refusing(FakeDeployment):
        """For a while, once the chaos is to end; then one of the two is gone."""

        opens_at = 0.0

        async def unsettle_gateway(self, rules: Any, seed: int) -> Epoch:
            now = asyncio.get_running_loop().time()
            if not rules:
                self.opens_at = self.opens_at or now + 0.2
                if now < self.opens_at:
                    raise Unavailable("connection refused")
            told = await super().unsettle_gateway(rules, seed)
            return told if rules else Epoch("g1")

    deployment, notes = Refusing(), list[str]()
    rules = (ChaosRule(at="registry.watch", fault=Fault.CUT, rate=0.5),)
    planned = scenario(rules=rules, duration_s=0.8)

    await ScenarioRun(planned, deployment, notes.append).run()  # type: ignore[arg-type]

    assert deployment.gateways_told.count(0) > 0
    assert [note for note in notes if "not seen to end their chaos: gateways g0;" in note]


@pytest.mark.parametrize(
    ("fault", "broken"),
    [
        ({"is_wrong": True}, "no wrong token"),
        ({"error": "gone"}, "no lost request"),
        ({"leased": 2}, "no leak"),
        ({"sampled": 5}, "no leak"),
    ],
)
async def test_whatever_breaks_is_named(fault: dict[str, Any], broken: str) -> None:
    held = await outcome_of(FakeDeployment(**fault), scenario())

    assert [name for name, holds in held.items() if not holds] == [broken]


async def test_a_deployment_without_chaos_is_left_alone() -> None:
    deployment = FakeDeployment(is_refused=True)

    with pytest.raises(InvalidConfig, match="chaos is off"):
        await outcome_of(deployment, scenario())

    assert deployment.num_asked == 0


@pytest.mark.parametrize("name", bundled_scenarios())
def test_scenarios_that_come_with_baton_can_be_read(name: str) -> None:
    planned = read_scenario(name)

    assert planned.rules or planned.process_faults
    assert planned.what.endswith(".")


def test_a_scenario_with_a_mistake_is_refused_with_its_place(tmp_path: Path) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text("what: x\nduration_s: 1\nprocess_faults: [{do: kill}]\n")

    with pytest.raises(InvalidConfig, match=r"either every_s or at_s.*process_faults"):
        read_scenario(str(file))
    with pytest.raises(InvalidConfig, match="those that come with Baton are"):
        read_scenario("no-such")


def test_equal_seeds_ask_the_same_and_prompts_begin_alike() -> None:
    prompts = make_prompts(QUICK, seed=1)

    assert prompts == make_prompts(QUICK, seed=1) != make_prompts(QUICK, seed=2)
    assert len(set(prompts)) == QUICK.num_prompts
    assert len({tuple(prompt.split()[: QUICK.shared_words]) for prompt in prompts}) == 1


def test_chaos_is_off_by_default_and_rules_alone_do_not_turn_it_on() -> None:
    rule = {"at": "kv_events", "fault": "drop"}

    assert ChaosConfig().start("decode-1") is None
    with pytest.raises(InvalidConfig, match=r"need chaos\.enabled"):
        override(DeploymentConfig(), {"chaos.rules": [rule]})
    with pytest.raises(InvalidConfig, match=r"unknown field `rat` - at `\$\.chaos\.rules\[0\]`"):
        override(DeploymentConfig(), {"chaos": {"enabled": True, "rules": [rule | {"rat": 1}]}})
    config = override(DeploymentConfig(), {"chaos": {"enabled": True, "rules": [rule]}})
    chaos = config.chaos.start("decode-1")
    assert chaos is not None and chaos.is_on
