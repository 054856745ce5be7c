"""A live deployment as a scenario uses it: its answers, its replicas, its accounts.

Answers come through the gateway, like any client's. Faults are set at the replicas directly, and at
the gateways' admin ports, never at the public port.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import grpc
import grpc.aio

from baton.client.async_client import AsyncBatonClient
from baton.core.chaos import ChaosRule
from baton.core.errors import Unavailable
from baton.core.ids import Epoch
from baton.platform.chaos.load import Tokens
from baton.platform.chaos.scenario import Load
from baton.platform.observe.gateway_pages import GatewayPages
from baton.proto import replica_pb2 as pb
from baton.proto.channels import Channels
from baton.proto.chaos_wire import chaos_to_proto
from baton.proto.replica_pb2_grpc import ReplicaStub

CALL_TIMEOUT_S = 5.0


@dataclass(frozen=True, slots=True)
class Target:
    replica_id: str
    role: str
    epoch: Epoch
    address: str


@dataclass(slots=True)
class LiveDeployment:
    pages: GatewayPages
    client: AsyncBatonClient
    channels: Channels
    num_injected: dict[Epoch, int] = field(default_factory=dict)
    """Faults injected so far, by replica or gateway, as last reported."""
    _num_before: dict[Epoch, int] = field(default_factory=dict)
    """The same, as first reported."""

    async def ask(self, prompt: str, seed: int, load: Load, *, salt: str = "") -> Tokens:
        result = await self.client.generate(
            prompt,
            seed=seed,
            temperature=load.temperature,
            max_tokens=load.max_tokens,
            ignore_eos=True,
            return_token_ids=True,
            cache_salt=salt,
        )
        return result.token_ids

    async def targets(self) -> list[Target]:
        """The replicas that can be reached now. Raises Unavailable if the gateway cannot."""
        report = await asyncio.to_thread(self.pages.get, "/debug/status")
        return [
            Target(row["replica"], role, Epoch(row["epoch"]), row["address"])
            for role, rows in report["pools"].items()
            for row in rows
            if row["is_reachable"]
        ]

    async def leaks(self) -> dict[str, Any]:
        return await asyncio.to_thread(self.pages.get, "/debug/leaks")

    async def status(self) -> dict[str, Any]:
        return await asyncio.to_thread(self.pages.get, "/debug/status")

    async def unsettle(
        self,
        target: Target,
        rules: Sequence[ChaosRule],
        seed: int,
        *,
        is_killed: bool = False,
        stopped_s: float = 0.0,
    ) -> None:
        """Raises Unavailable if the replica refuses, or cannot be reached."""
        request = chaos_to_proto(
            rules, epoch=target.epoch, seed=seed, is_killed=is_killed, stopped_s=stopped_s
        )
        stub = ReplicaStub(self.channels.to(target.address))
        try:
            reply: pb.ChaosReply = await stub.Unsettle(request, timeout=CALL_TIMEOUT_S)
        except grpc.aio.AioRpcError as error:
            raise Unavailable(f"{target.replica_id}: {error.details()}") from error
        num_injected = sum(entry.num_injected for entry in reply.injected)
        self.num_injected[target.epoch] = num_injected
        self._num_before.setdefault(target.epoch, num_injected)

    async def unsettle_gateway(self, rules: Sequence[ChaosRule], seed: int) -> Epoch:
        """Set faults at one of the gateways that share the port; return which. Raises Unavailable
        like `unsettle`."""
        told = {"rules": rules, "seed": seed}
        reply = await asyncio.to_thread(self.pages.post, "/debug/chaos", told)
        gateway, num_faults = Epoch(reply["gateway"]), int(reply["num_faults"])
        self.num_injected[gateway] = num_faults
        self._num_before.setdefault(gateway, num_faults)
        return gateway

    async def kill_gateway(self) -> None:
        """Raises Unavailable if it refuses, or cannot be reached."""
        await asyncio.to_thread(self.pages.post, "/debug/chaos", {"do": "kill"})

    @property
    def num_faults(self) -> int:
        """Faults injected since the start, as far as replicas have reported."""
        return sum(self.num_injected.values()) - sum(self._num_before.values())
