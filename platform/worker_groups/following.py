"""The adapter's process: reconciles every few seconds, and at once after a watch event.

Watches are daemon threads that only trigger a reconciliation; without them it is periodic.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from baton.core.metrics import exposition
from baton.platform.observe.process_port import ProcessPages, ProcessPort
from baton.platform.worker_groups.adapter import Adapter
from baton.platform.worker_groups.kube_api import CLUSTERS, GONE, SERVICES, KubeApi, KubeTrouble

log = logging.getLogger(__name__)

BREATH_S = 1.0
"""Seconds from an event to the look: events come in bursts, of our own patches among others."""
PAUSE_S = 30.0
"""Seconds after a watch that was refused, or broke."""
STUCK_AFTER_S = 300.0
"""Seconds after which a reconciliation counts as hung."""


@dataclass(slots=True)
class Following:
    adapter: Adapter
    api: KubeApi
    port: int
    _woken: asyncio.Event = field(default_factory=asyncio.Event)
    _looked_s: float = field(default_factory=time.monotonic)

    async def follow(self, stop: asyncio.Event) -> None:
        """Follow until `stop`. The page is up from the beginning."""
        pages = ProcessPages(
            metrics=lambda: exposition(self.adapter.families()),
            is_well=lambda: time.monotonic() - self._looked_s < STUCK_AFTER_S,
            is_ready=lambda: True,
            explain=self.adapter.account.explain,
        )
        page, loop = ProcessPort(pages), asyncio.get_running_loop()
        await page.start("0.0.0.0", self.port)
        wake, ended = _from_thread(loop, self._woken.set), threading.Event()
        for plural in (SERVICES, CLUSTERS):
            args = (self.api, plural, wake, ended)
            threading.Thread(target=keep_watching, args=args, name=plural, daemon=True).start()
        looks = asyncio.create_task(self._look_for_ever(), name="looks")
        try:
            await stop.wait()
        finally:
            ended.set()
            looks.cancel()
            await page.stop()

    async def _look_for_ever(self) -> None:
        while True:
            delay_s = 60.0
            try:
                delay_s = await asyncio.to_thread(self.adapter.follow)
            except Exception:  # objects that nobody foresaw: groups stay, and the log says which
                log.exception("worker groups could not be looked at; they stay as they are")
            self._looked_s = time.monotonic()
            self._woken.clear()
            try:
                async with asyncio.timeout(delay_s):
                    await self._woken.wait()
                await asyncio.sleep(min(BREATH_S, delay_s))
            except TimeoutError:
                pass


def keep_watching(
    api: KubeApi, plural: str, wake: Callable[[], None], ended: threading.Event
) -> None:
    """Watch until `ended`, and wake after every gap, whatever was missed."""
    is_told = False
    while not ended.is_set():
        pause_s = BREATH_S
        try:
            api.watch(plural, wake)
            is_told = False
        except KubeTrouble as trouble:
            if trouble.status != GONE:
                pause_s = PAUSE_S
                if not is_told:
                    log.warning("%s cannot be watched, and are looked at: %s", plural, trouble)
                is_told = True
        wake()
        ended.wait(pause_s)


def _from_thread(loop: asyncio.AbstractEventLoop, do: Callable[[], None]) -> Callable[[], None]:
    def call() -> None:
        if not loop.is_closed():
            loop.call_soon_threadsafe(do)

    return call
