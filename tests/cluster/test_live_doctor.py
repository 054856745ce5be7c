"""`baton doctor` against a real cluster: replicas in processes of their own are measured."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
from tests.live_server import Server

pytestmark = [pytest.mark.cluster, pytest.mark.wide]


def test_the_doctor_measures_the_ways_between_processes(server: Server) -> None:
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "baton.platform.cli.main",
            "doctor",
            "--json",
            "--url",
            server.admin_url,
        ],
        capture_output=True,
        text=True,
        timeout=200,
    )

    report = json.loads(done.stdout)
    way_by_name = {way["transport"]: way for way in report["ways"]}
    found = {finding["name"]: finding["status"] for finding in report["findings"]}
    assert done.returncode == 0, report["findings"]
    assert way_by_name["grpc"]["sizes"][-1]["bytes_per_s"] > 0
    assert way_by_name["shm"]["sizes"][-1]["bytes_per_s"] > 0
    assert found["KV transport"] == found["handoff"] == found["equal versions"] == "ok"
    assert server.leaks()["violations"] == []
