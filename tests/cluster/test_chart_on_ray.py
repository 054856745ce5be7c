"""What the chart writes for KubeRay, given to Ray: `serve deploy`, its probes, and its ports."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import httpx
import pytest
import ray
from tests.cluster.node_script import node_script
from tests.cluster.test_live_cluster import is_prefilled_apart, wait_for
from tests.free_ports import free_ports
from tests.helm.chart import Manifest, profiles, render

from baton.platform.cluster.local_cluster import ray_environment

pytestmark = [pytest.mark.cluster, pytest.mark.wide]


def serve(dashboard: str, *command: str) -> None:
    program = Path(sys.executable).with_name("serve")
    ran = subprocess.run(
        [program, *command, "-a", dashboard],
        env={**os.environ, **ray_environment()},
        capture_output=True, text=True, timeout=200, check=False,
    )  # fmt: skip
    assert ran.returncode == 0, ran.stdout + ran.stderr


def probe(group: Manifest, name: str) -> int:
    """The status that the kubelet would get at the pod's address; 0 for none."""
    [container] = group["template"]["spec"]["containers"]
    asked = container[name]["httpGet"]
    [port] = [one["containerPort"] for one in container["ports"] if one["name"] == asked["port"]]
    address = ray.util.get_node_ip_address()  # type: ignore[no-untyped-call]
    try:
        return httpx.get(f"http://{address}:{port}{asked['path']}", timeout=5).status_code
    except httpx.HTTPError:
        return 0


def test_what_a_profile_renders_serves_on_rays_own_word(tmp_path: Path) -> None:
    port, grpc_port, admin_port, gateway_metrics, prefill_metrics, decode_metrics = free_ports(6)
    values: dict[str, Any] = profiles()["kind"]
    config = values.setdefault("config", {})
    ports = {"port": port, "grpc_port": grpc_port, "admin_port": admin_port}
    config["gateway"] = {**config.get("gateway", {}), **ports}
    config["metrics"] = {
        "gateway_port": gateway_metrics,
        "prefill_port": prefill_metrics,
        "decode_port": decode_metrics,
    }
    spec = render(values).one("RayService")["spec"]
    document = tmp_path / "serve.yaml"
    document.write_text(spec["serveConfigV2"])
    groups = spec["rayClusterConfig"]["workerGroupSpecs"]

    labels = [json.dumps(group["labels"]) for group in groups]
    with node_script("chart_nodes", *labels) as nodes:
        dashboard = nodes.answer()
        assert [probe(group, "readinessProbe") for group in groups] == [0, 0, 0]
        serve(dashboard, "deploy", str(document))
        wait_for(lambda: [probe(group, "readinessProbe") for group in groups] == [200] * 3)
        wait_for(lambda: is_prefilled_apart(f"http://127.0.0.1:{port}"))
        serve(dashboard, "shutdown", "-y")
