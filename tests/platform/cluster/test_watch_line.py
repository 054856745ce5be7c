"""What a gateway hears of replicas while its deployment is brought to another model."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from tests.gateway.fleet.known_replicas import make_replica

from baton.core.ids import Epoch
from baton.core.replicas import Membership
from baton.platform.cluster.registry_actor import RemoteRegistry
from baton.platform.config.deployment import DeploymentConfig, override


class Handle:
    """Answers as Serve's would."""

    def __init__(self, membership: Membership) -> None:
        self.watch = self
        self._membership = membership

    async def remote(self, *_: Any) -> Membership:
        return self._membership


async def test_a_gateway_never_hears_of_replicas_with_another_model() -> None:
    config = DeploymentConfig()
    others = [
        override(config, change).model_identity
        for change in ({"model": "org/other"}, {"attention_window": 99}, {"load_format": "dummy"})
    ]
    infos = tuple(
        replace(make_replica(f"decode-{number}"), model=model)
        for number, model in enumerate([config.model_identity, *others])
    )
    known = Membership(incarnation=Epoch("r"), version=1, age_s=1.0, replicas=infos)
    handle: Any = Handle(known)

    heard = await RemoteRegistry(handle, config.model_identity).watch(None, 0)

    assert heard.replicas == infos[:1]
    assert (await RemoteRegistry(handle).watch(None, 0)).replicas == infos
