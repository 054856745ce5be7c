"""Runs a scenario against a live deployment.

    ask undisturbed -> set rules, kill and stop, end the chaos -> come to rest -> judge

Replicas that restart after a kill get the rules, too, and so do gateways if a rule is for them. The
faults are always removed at the end.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, field
from random import Random

from baton.core.chaos import AT_GATEWAYS
from baton.core.errors import InvalidConfig, Unavailable
from baton.core.ids import Epoch
from baton.core.wording import count_of
from baton.platform.chaos.live import LiveDeployment, Target
from baton.platform.chaos.load import DisturbedLoad, Tally, make_prompts, undisturbed
from baton.platform.chaos.scenario import ProcessFault, Scenario
from baton.platform.chaos.verdict import Invariant, judge, unsettled

POLL_S = 0.5
CALLS_A_GATEWAY = 20
"""Calls for each gateway at one port after which every one should have had one."""

Report = Callable[[str], None]


@dataclass(slots=True)
class Outcome:
    invariants: list[Invariant] = field(default_factory=list)
    tally: Tally = field(default_factory=Tally)
    process_faults: list[str] = field(default_factory=list)
    num_faults: int = 0

    @property
    def is_good(self) -> bool:
        return all(invariant.holds for invariant in self.invariants)


class ScenarioRun:
    def __init__(self, scenario: Scenario, deployment: LiveDeployment, report: Report) -> None:
        self._scenario = scenario
        self._deployment = deployment
        self._report = report
        self._random = Random(f"process_faults/{scenario.seed}")
        self._unruly: set[Epoch] = set()
        self._unruly_gateways: set[Epoch] = set()
        self._is_for_gateways = any(rule.at in AT_GATEWAYS for rule in scenario.rules)
        self._process_faults: list[str] = []

    async def run(self) -> Outcome:
        """Raises InvalidConfig if the deployment has chaos disabled, Unavailable if it is away."""
        scenario, load = self._scenario, self._scenario.load
        await self._check_enabled()
        prompts = make_prompts(load, scenario.seed)
        self._report(f"{count_of(len(prompts), 'prompt')}, asked undisturbed")
        expected = await undisturbed(self._deployment, prompts, load)
        disturbed = DisturbedLoad(self._deployment, load, prompts, expected)
        self._report(f"{scenario.duration_s:g} s of chaos: {scenario.what}")
        try:
            tally = await self._disturbed(disturbed)
        finally:
            await self._calm()
        left_over = await self._wait_until_idle()
        return Outcome(
            invariants=judge(scenario, tally, left_over),
            tally=tally,
            process_faults=self._process_faults,
            num_faults=self._deployment.num_faults,
        )

    async def _disturbed(self, disturbed: DisturbedLoad) -> Tally:
        ends_at = time.monotonic() + self._scenario.duration_s
        async with asyncio.TaskGroup() as group:
            making = [group.create_task(self._keep_unruly())]
            making += [
                group.create_task(self._inject(fault)) for fault in self._scenario.process_faults
            ]
            tally = await disturbed.run(lambda: time.monotonic() >= ends_at)
            for task in making:
                task.cancel()
        return tally

    async def _keep_unruly(self) -> None:
        """Give the rules to all replicas, including new ones, for ever."""
        while True:
            for target in await self._targets():
                if target.epoch not in self._unruly:
                    with suppress(Unavailable):  # it is draining, or not ready yet
                        await self._deployment.unsettle(
                            target, self._scenario.rules, self._scenario.seed
                        )
                        self._unruly.add(target.epoch)
            if self._is_for_gateways:  # any of several at one port may have been asked
                with suppress(Unavailable):
                    gateway = await self._deployment.unsettle_gateway(
                        self._scenario.rules, self._scenario.seed
                    )
                    self._unruly_gateways.add(gateway)
            await asyncio.sleep(POLL_S)

    async def _inject(self, fault: ProcessFault) -> None:
        started = time.monotonic()
        for at_s in fault.times(self._scenario.duration_s):
            await asyncio.sleep(max(0.0, started + at_s - time.monotonic()))
            if fault.role == "gateway":
                await self._hit_gateway(at_s)
                continue
            possible = [t for t in await self._targets() if fault.role in ("any", t.role)]
            if not possible:
                self._note(f"{at_s:g} s: nobody to {fault.do}")
                continue
            target = self._random.choice(sorted(possible, key=lambda one: one.replica_id))
            await self._hit(target, fault, at_s)

    async def _hit(self, target: Target, fault: ProcessFault, at_s: float) -> None:
        is_killed = fault.do == "kill"
        stopped_s = 0.0 if is_killed else fault.for_s
        try:
            await self._deployment.unsettle(
                target,
                self._scenario.rules,
                self._scenario.seed,
                is_killed=is_killed,
                stopped_s=stopped_s,
            )
        except Unavailable as error:
            self._note(f"{at_s:g} s: could not {fault.do} {target.replica_id}: {error}")
        else:
            self._note(f"{at_s:g} s: {fault.do} {target.replica_id}")

    async def _hit_gateway(self, at_s: float) -> None:
        try:
            await self._deployment.kill_gateway()
        except Unavailable as error:
            self._note(f"{at_s:g} s: could not kill the gateway: {error}")
        else:
            self._note(f"{at_s:g} s: kill the gateway")

    async def _check_enabled(self) -> None:
        targets = await self._deployment.targets()
        if not targets:
            raise Unavailable("no replica can be reached; see `baton status`")
        for target in targets:
            try:
                await self._deployment.unsettle(target, (), self._scenario.seed)
            except Unavailable as error:
                raise InvalidConfig(str(error)) from error

    async def _calm(self) -> None:
        """Remove all faults, also on replicas that are still restarting."""

        async def is_calm() -> bool:
            targets = await self._targets()
            for target in targets:
                try:
                    await self._deployment.unsettle(target, (), self._scenario.seed)
                except Unavailable:
                    return False
            return bool(targets)

        await self._until(is_calm)
        calmed: set[Epoch] = set()
        for _ in range(CALLS_A_GATEWAY * len(self._unruly_gateways)):
            if calmed >= self._unruly_gateways:
                break
            try:
                calmed.add(await self._deployment.unsettle_gateway((), self._scenario.seed))
            except Unavailable:  # no gateway may listen for a while, for example after a kill
                await asyncio.sleep(POLL_S)
        if unseen := sorted(self._unruly_gateways - calmed):
            names = ", ".join(unseen)
            self._note(f"not seen to end their chaos: gateways {names}; killed ones have none left")

    async def _wait_until_idle(self) -> list[str]:
        left_over: list[str] = []

        async def is_at_rest() -> bool:
            try:
                leaks, status = await self._deployment.leaks(), await self._deployment.status()
            except Unavailable as error:
                left_over[:] = [str(error)]
                return False
            left_over[:] = unsettled(leaks, status)
            return not left_over

        await self._until(is_at_rest)
        return left_over

    async def _until(self, is_done: Callable[[], Awaitable[bool]]) -> None:
        ends_at = time.monotonic() + self._scenario.settle_s
        while not await is_done() and time.monotonic() < ends_at:
            await asyncio.sleep(POLL_S)

    async def _targets(self) -> list[Target]:
        """The reachable replicas; none while the gateway is away, too."""
        try:
            return await self._deployment.targets()
        except Unavailable:
            return []

    def _note(self, text: str) -> None:
        self._process_faults.append(text)
        self._report(text)
