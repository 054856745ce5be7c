"""Ray that does not come up in time on a loaded machine is started once more."""

from __future__ import annotations

import pytest
import ray

from baton.platform.cli.runs import serve
from baton.platform.config.deployment import DeploymentConfig

LATE = "The current node timed out during startup. This could happen because the raylet failed."


@pytest.mark.parametrize(
    ("failures", "is_up", "num_starts"),
    [
        ([], True, 1),
        ([LATE] * (serve.RAY_STARTS - 1), True, serve.RAY_STARTS),
        ([LATE] * serve.RAY_STARTS, False, serve.RAY_STARTS),
        (["Permission denied: /tmp/ray"], False, 1),
    ],
)
def test_a_late_ray_is_started_again_and_nothing_else(
    failures: list[str], is_up: bool, num_starts: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    starts: list[dict[str, object]] = []
    left = list(failures)

    def init(**options: object) -> None:
        starts.append(options)
        if left:
            raise RuntimeError(left.pop(0))

    monkeypatch.setattr(ray, "init", init)
    monkeypatch.setattr(ray, "shutdown", lambda: None)
    monkeypatch.setattr(serve, "worker_environment", dict)
    if is_up:
        serve._join_or_start(DeploymentConfig())
    else:
        with pytest.raises(RuntimeError):
            serve._join_or_start(DeploymentConfig())

    assert len(starts) == num_starts and starts[-1]["address"] == "local"
