"""A model without a server: engine and gateway in this process, no Ray, no ports.

The gateway is the served one, so templates, defaults, stop strings and checks are the same code.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from baton.core.errors import Cancelled
from baton.core.ids import ReplicaId, new_epoch
from baton.core.replicas import Role
from baton.decode_service.worker import DecodeWorker
from baton.engine.engine import Engine
from baton.gateway.requests.gateway import Gateway
from baton.gateway.text.served_model import ServedModel
from baton.kv_transfer.exchange import ExchangeParts
from baton.kv_transfer.transports import TransportParts, create_transport
from baton.platform.config.deployment import DeploymentConfig
from baton.platform.machine.core_share import limit_threads
from baton.platform.models.adapter_folders import folders_here
from baton.platform.offline.local_dispatcher import LocalDispatcher
from baton.platform.replica.replica import Progress, load_engine
from baton.proto.channels import Channels

REPLICA_ID = ReplicaId("local")


async def load_offline(
    config: DeploymentConfig, folder: Path, progress: Progress | None = None
) -> Engine:
    """Load an engine of the decode pool; `config` has the adapters' folders. Raises CheckpointError
    or InvalidConfig as a replica does.
    Cancelling it stops reading weights on the other thread.
    """
    limit_threads()
    is_cancelled = threading.Event()

    def report(done: int, total: int) -> None:
        if is_cancelled.is_set():
            raise Cancelled("nobody waits for the weights any more")
        if progress is not None:
            progress(done, total)

    try:
        adapters = folders_here(config)
        return await load_engine(config, Role.DECODE, folder, report, adapters=adapters)
    except asyncio.CancelledError:
        is_cancelled.set()
        raise


@asynccontextmanager
async def offline_gateway(
    config: DeploymentConfig, model: ServedModel, engine: Engine
) -> AsyncIterator[Gateway]:
    """A gateway without ports over one engine."""
    worker = DecodeWorker(
        engine,
        ExchangeParts(
            epoch=new_epoch(),
            transport=create_transport("memory", TransportParts()),
            channels=Channels(),  # it asks nobody
        ),
        replica_id=REPLICA_ID,
        max_open=config.decode.max_open,
    )
    await worker.core.start()
    dispatcher = LocalDispatcher(worker)
    try:
        yield Gateway(model=model, dispatcher=dispatcher, config=config.gateway)
    finally:
        await dispatcher.close()
        await worker.stop()
