"""Ray that does not come up in time on a loaded machine is started once more."""

from __future__ import annotations

import os
import signal
import subprocess

import pytest
import ray

from baton.platform.cli.runs import serve
from baton.platform.config.deployment import DeploymentConfig
from baton.platform.machine.child_processes import descendants, end

LATE = "The current node timed out during startup. This could happen because the raylet failed."


@pytest.mark.parametrize(
    ("failures", "load", "is_up", "num_starts"),
    [
        ([], 99.0, True, 1),
        ([LATE] * (serve.RAY_STARTS - 1), 99.0, True, serve.RAY_STARTS),
        ([LATE] * serve.RAY_STARTS, 99.0, False, serve.RAY_STARTS),
        ([LATE], 0.1, False, 1),
        (["Permission denied: /tmp/ray"], 99.0, False, 1),
    ],
)
def test_a_late_ray_is_started_again_and_nothing_else(
    failures: list[str],
    load: float,
    is_up: bool,
    num_starts: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    starts: list[dict[str, object]] = []
    nodes: list[subprocess.Popen[bytes]] = []
    left = list(failures)

    def init(**options: object) -> None:
        starts.append(options)
        nodes.append(subprocess.Popen(["/bin/sh", "-c", "sleep 60 & wait; exec sleep 60"]))
        if left:
            raise RuntimeError(left.pop(0))

    monkeypatch.setattr(ray, "init", init)
    monkeypatch.setattr(os, "getloadavg", lambda: (load, 0.0, 0.0))
    monkeypatch.setattr(os, "cpu_count", lambda: 8)
    monkeypatch.setattr(ray, "shutdown", lambda: None)
    monkeypatch.setattr(serve, "worker_environment", dict)
    if is_up:
        serve._join_or_start(DeploymentConfig())
    else:
        with pytest.raises(RuntimeError):
            serve._join_or_start(DeploymentConfig())

    assert len(starts) == num_starts and starts[-1]["address"] == "local"
    *ended, last = nodes
    assert [node.wait(60) for node in ended] == [-signal.SIGKILL] * len(ended)
    assert last.poll() is None
    end((*descendants(last.pid), last.pid))
    last.wait(60)
