"""Finds a replica for each request of this gateway among those that it knows.

    start -> RunningRequest --place--> WaitingRequests, until the placer finds a place on the fleet
                                <----- Placed: an attempt, open on a decode replica

A request waits here, never after an expensive prefill. The placer decides where it goes.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from dataclasses import asdict, replace
from functools import partial
from typing import Any
from weakref import WeakValueDictionary

from baton.core.clock import Clock, monotonic
from baton.core.errors import Unavailable
from baton.core.ids import Epoch, RequestId, new_epoch
from baton.core.messages import GenerateRequest, ParkedStream
from baton.core.metrics import Counter, Family, gauge
from baton.core.parking import TakeStream
from baton.gateway.access.api_keys import BACKGROUND
from baton.gateway.fleet.draining import drain, flip, reset_prefix_cache, undrain
from baton.gateway.fleet.fleet import Fleet
from baton.gateway.fleet.fleet_report import knowledge_families, leaks_report, status_report
from baton.gateway.fleet.links.replica_link import ReplicaLink
from baton.gateway.fleet.membership.registry_follower import RegistryClient, follow
from baton.gateway.fleet.placement.admission_line import AdmissionTicket
from baton.gateway.fleet.placement.decision_log import DecisionLog, FirstToken, PlacementRecord
from baton.gateway.fleet.placement.placed import Placed
from baton.gateway.fleet.placement.placement_queue import PlacementAttempt
from baton.gateway.fleet.placement.replica_wait import ReplicaWait
from baton.gateway.fleet.placement.waiting_requests import WaitingRequests
from baton.gateway.fleet.running.resumed_request import ResumedRequest
from baton.gateway.fleet.running.running_request import RunningRequest, first_request
from baton.gateway.fleet.traffic import Traffic, TrafficReport, speeds_of
from baton.gateway.requests.generations.generation import (
    DecodeRoom,
    Estimate,
    Generation,
    RunningGeneration,
)
from baton.gateway.requests.generations.prompt_progress import PromptProgress
from baton.gateway.requests.readiness import Missing, Wanted, missing
from baton.proto.channels import Channels
from baton.router.cache.prompt_names import PromptNames, names_of
from baton.router.cache.pulling import RateMeter
from baton.router.explain.capture import capture, captured_replicas
from baton.router.explain.decisions import Decisions
from baton.router.fairness.slo import ObjectiveOutcome
from baton.router.placement import placement_request
from baton.router.placer import Placer, Routing


class ReplicaDispatcher:
    """The gateway's one dispatcher. `run` keeps it in touch with the registry."""

    def __init__(  # noqa: PLR0913 - what it goes by, each by name
        self,
        routing: Routing,
        *,
        max_waiting: int,
        no_replica_grace_s: float,
        cold_start_s: float | None = None,
        kept_decisions: int = 0,
        clock: Clock = monotonic,
        channels: Channels | None = None,
    ) -> None:
        self.epoch: Epoch = new_epoch()
        self._clock = clock
        self.fleet = Fleet(
            self.epoch,
            lambda: self._waiting.on_fleet_change(),
            channels or Channels(),
            RateMeter(routing.pull_rates),
            clock,
        )
        self._replica_wait = ReplicaWait(self.fleet, no_replica_grace_s, cold_start_s)
        self._placer = Placer(routing, self.fleet.matches.num_tokens, self.fleet.matches.lookup)
        self._log = DecisionLog(self.fleet, routing.name, kept_decisions, clock)
        self._traffic = Traffic(clock)
        self._in_background: set[RequestId] = set()
        """Background requests that have a place."""
        self._registries: Callable[[], list[dict[str, Any]]] | None = None
        self._placed_by_request: WeakValueDictionary[RequestId, Placed] = WeakValueDictionary()
        """The current attempts; weak, since the requests own them."""
        self._waiting = WaitingRequests(
            self.fleet,
            self._placer,
            self._log,
            self._replica_wait,
            max_waiting=max_waiting,
            weights=routing.weights,
            clock=clock,
        )
        self._kept = Counter(
            "baton_gateway_slo_requests_total",
            "Requests with an objective that ended, by what of it was missed",
            ("slo_class", "outcome"),
        )

    def reconfigure(
        self,
        routing: Routing,
        *,
        max_waiting: int,
        no_replica_grace_s: float,
        cold_start_s: float | None = None,
    ) -> None:
        """Use these settings from now on; requests that have a place keep it. `cold_start_s`:
        seconds until a replica serves that is started for waiting requests (scale from zero)."""
        self._replica_wait.reconfigure(no_replica_grace_s, cold_start_s)
        self._waiting.reconfigure(max_waiting, routing.weights)
        self._placer.reroute(routing)
        self._log.policy = routing.name
        self._waiting.on_fleet_change()

    async def run(
        self,
        registry: RegistryClient,
        registries: Callable[[], list[dict[str, Any]]] | None = None,
    ) -> None:
        """`registries`: the state of each registry, for operators."""
        self._registries = registries
        looking = asyncio.create_task(self._waiting.look_after(), name="looks after the line")
        try:
            await follow(registry, self.fleet)
        finally:
            looking.cancel()
            await asyncio.gather(looking, return_exceptions=True)
            await self.fleet.close()

    async def start(self, generation: Generation) -> RunningGeneration:
        """Return once the request has a place. Raises Overloaded, Unavailable, DeadlineExceeded."""
        parked = generation.parked
        if parked is None:
            return await self._start(generation)
        is_over = parked.finish_reason is not None
        return ResumedRequest(parked, None if is_over else await self._start(generation))

    async def take_stream(self, wanted: TakeStream) -> ParkedStream | None:
        return await self.fleet.links.take_stream(wanted)

    def leave(self) -> None:
        self.fleet.links.leave()

    async def _start(self, generation: Generation) -> RunningRequest:
        prompt = PromptNames(generation.prompt, generation.salt)
        first_token = FirstToken(self._log.ttft_errors, self._clock)
        kept = ObjectiveOutcome(generation.slo, self._clock())
        has_begun = False

        async def place(
            next_request: Callable[[], GenerateRequest],
            on_placed: Callable[[Placed], None],
            lost: frozenset[Epoch],
            time_left_s: float | None,
        ) -> None:
            asked_s = self._clock()
            for _ in prompt.make(self.fleet.loads.layouts):
                await asyncio.sleep(0)  # the list may be long: let other tasks run in between

            asked = PlacementRecord(
                generation.owner, asked_s, self._queued_s(generation), first_token, kept
            )

            def has_place(placed: Placed) -> None:
                self._placed_by_request[generation.request_id] = placed
                if generation.priority == BACKGROUND:
                    self._in_background.add(generation.request_id)
                self._traffic.place(generation.request_id, placed.placement.num_prefill_tokens)
                on_placed(placed)

            attempt = PlacementAttempt(
                next_request, prompt, has_place, lost, generation.near, asked, generation.session
            )
            turn = AdmissionTicket(
                request_id=generation.request_id,
                priority=generation.priority,
                tenant=generation.tenant,
                is_retry=has_begun,
                max_wait_s=generation.max_wait_s,
                time_left_s=time_left_s,
                due_in_s=generation.slo.due_in_s,
            )
            await self._waiting.place(attempt, turn)

        charge = partial(self._waiting.charge, generation.tenant)

        def end(num_output_tokens: int) -> None:
            self._in_background.discard(generation.request_id)
            self._traffic.end(generation.request_id, num_output_tokens)
            if num_output_tokens:
                self._placer.observe_output(num_output_tokens)
            first_token.never_comes()
            if generation.slo.is_given:
                self._kept.add(1, generation.slo.name, kept.outcome)

        running = RunningRequest(generation, place, self._clock, charge, end)
        self._traffic.arrive(generation.request_id, len(generation.prompt))
        try:
            await running.place()
        except BaseException:
            end(0)
            raise
        has_begun = True
        return running

    def progress(self, generation: Generation) -> PromptProgress | None:
        placed = self._placed_by_request.get(generation.request_id)
        if placed is not None:
            return placed.progress(self._clock())
        return self._waiting.progress(generation.request_id, len(generation.prompt))

    @property
    def decisions(self) -> Decisions:
        return self._log.decisions

    def captured(self) -> Iterator[bytes]:
        replicas = captured_replicas(self.fleet.view(PromptNames()))
        return capture(iter(self.decisions), self._log.policy, replicas)

    async def estimate(self, generation: Generation) -> Estimate:
        prompt = PromptNames(generation.prompt, generation.salt)
        for _ in prompt.make(self.fleet.loads.layouts):
            await asyncio.sleep(0)
        request = first_request(generation)
        names, near = names_of(request, prompt), self.fleet.loads.where_runs(generation.near)
        asked = replace(
            placement_request(request, request.prompt, near=near),
            session=generation.session,
            due_s=generation.slo.due_s(self._clock()),
            itl_s=generation.slo.allowed_itl_s,
        )
        outlook = self._placer.outlook(asked, names, self.fleet.view(names), self._clock())
        if outlook is None:
            raise Unavailable("no decode replica has room at the moment; ask again later")
        return self._log.estimate(asked, outlook, self._queued_s(generation))

    def _queued_s(self, generation: Generation) -> float:
        """Predicted seconds until a new request like this one is admitted."""
        due_in_s = generation.slo.due_in_s
        return self._waiting.admitted_in_s(generation.tenant, generation.priority, due_in_s)

    def traffic(self) -> TrafficReport:
        """This gateway's traffic, for the planner."""
        links: tuple[ReplicaLink[Any], ...] = (*self.fleet.connected, *self.fleet.lending)
        decode = self.fleet.view(PromptNames()).decode
        can_decode = bool(decode.pool.is_open.any())
        return self._traffic.report(speeds_of(links, self._clock()), can_decode=can_decode)

    @property
    def max_model_len(self) -> int:
        return min((link.info.max_model_len for link in self.fleet.connected), default=0)

    def room(self) -> DecodeRoom:
        num_places, num_taken = self.fleet.decode_places
        return DecodeRoom(
            num_places=num_places,
            num_taken=num_taken,
            num_awaited=max(0, num_taken - len(self._in_background)),
            num_waiting=self._waiting.num_interactive,
        )

    def is_ready(self) -> bool:
        """False while it still learns what is cached: requests would wait here, and other gateways
        can take them."""
        return self._replica_wait.makes_sense and not self.fleet.warm_up.is_under_way

    def trouble(self) -> str:
        if self._replica_wait.makes_sense:
            return "what replicas have cached is not known here yet"
        return self._replica_wait.trouble

    def missing(self, wanted: Wanted) -> tuple[Missing, ...]:
        fleet = self.fleet
        return missing(wanted, fleet.trouble_by_replica(), fleet.starting)

    async def until_complete(self, wanted: Wanted) -> None:
        """Return once requests are accepted and no wanted replica is missing."""
        while self.missing(wanted) or not self.is_ready():
            self._waiting.has_changed.clear()
            await self._waiting.has_changed.wait()

    @property
    def num_waiting(self) -> int:
        """Requests that wait for a place, including those that still run while they move."""
        return len(self._waiting)

    async def leaks(self) -> dict[str, Any]:
        inspections = await self.fleet.links.inspect(with_audit=True)
        return leaks_report(self.fleet.replicas, inspections)

    async def status(self) -> dict[str, Any]:
        inspections = await self.fleet.links.inspect()
        links = self.fleet.links
        report = status_report(
            self.fleet.replicas, inspections, links.kv_knowledge(), is_secured=links.is_secured
        )
        if self._registries is not None:
            report["registries"] = self._registries()
        return {**report, "num_waiting": self.num_waiting}

    async def drain(self, replica_id: str, *, is_forced: bool) -> dict[str, Any]:
        return asdict(await drain(self.fleet, replica_id, is_forced=is_forced))

    async def undrain(self, replica_id: str) -> dict[str, Any]:
        return asdict(await undrain(self.fleet, replica_id))

    async def flip(self, replica: str, to: str) -> dict[str, Any]:
        return asdict(await flip(self.fleet, replica, to))

    async def reset_prefix_cache(self, replica_id: str) -> dict[str, int]:
        return await reset_prefix_cache(self.fleet, replica_id)

    def metrics(self) -> Iterator[Family]:
        yield gauge(
            "baton_gateway_waiting_requests", "Requests that wait for a place", self.num_waiting
        )
        yield self._kept.family()
        yield from knowledge_families(self.fleet.replicas, self.fleet.links.kv_knowledge())
