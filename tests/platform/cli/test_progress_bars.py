"""What the bars are told; how they look is rich's business."""

from __future__ import annotations

import asyncio
import io
import threading
from pathlib import Path

import pytest
from rich.console import Console
from rich.progress import Progress
from tests.tiny_checkpoints import make_llama

from baton.platform.cli.terminal.progress import DownloadBars, StartBars
from baton.platform.config.deployment import DeploymentConfig
from baton.platform.offline.offline import load_offline


@pytest.fixture
def bars() -> Progress:
    return Progress(console=Console(file=io.StringIO()))


def drawn(bars: Progress) -> dict[str, tuple[float, float | None]]:
    return {task.description: (task.completed, task.total) for task in bars.tasks}


def test_each_file_has_a_bar_of_its_bytes(bars: Progress) -> None:
    download = DownloadBars(bars)

    download.begin("a.safetensors", 100)
    download.begin("b.safetensors", 50)
    download.advance("a.safetensors", 30)
    download.advance("a.safetensors", 10)

    assert drawn(bars) == {"a.safetensors": (40, 100), "b.safetensors": (0, 50)}


def test_a_replica_has_a_bar_while_it_loads(bars: Progress) -> None:
    start = StartBars(bars)

    start.show("starting replicas", {"decode-1": 0.25, "prefill-1": 0.5})
    assert drawn(bars) == {
        "starting replicas": (0, None),
        "decode-1": (0.25, 1.0),
        "prefill-1": (0.5, 1.0),
    }

    start.show("almost", {"decode-1": 0.75})
    assert drawn(bars) == {"almost": (0, None), "decode-1": (0.75, 1.0)}


async def test_giving_up_while_weights_are_read_ends_the_reading(tmp_path: Path) -> None:
    folder, config = make_llama(tmp_path), DeploymentConfig()
    is_reading, may_go_on = threading.Event(), threading.Event()
    reports: list[int] = []

    def progress(done: int, total: int) -> None:
        reports.append(done)
        is_reading.set()
        may_go_on.wait(120)

    loading = asyncio.create_task(load_offline(config, folder, progress))
    await asyncio.to_thread(is_reading.wait, 120)

    loading.cancel()
    await asyncio.gather(loading, return_exceptions=True)
    may_go_on.set()
    await asyncio.get_running_loop().shutdown_default_executor()

    assert loading.cancelled()
    assert len(reports) == 1
