"""`baton doctor` as a shell sees it: a table, or JSON, and an exit status."""

from __future__ import annotations

import json
import socket
from pathlib import Path
from typing import Any

import msgspec
from tests.free_ports import free_ports
from typer.testing import CliRunner, Result

from baton.platform.cli.main import app
from baton.platform.observe.listeners import NUM_PORTS


def doctor(folder: Path, config: dict[str, Any], *arguments: str) -> Result:
    """Without a gateway, also where others run one: its configured ports are free ones."""
    file = folder / "baton.yaml"
    ports = {"port": 0, "grpc_port": 0, "admin_port": free_ports(NUM_PORTS)[0]}
    gateway = {**ports, **config.get("gateway", {})}
    file.write_bytes(msgspec.yaml.encode({**config, "gateway": gateway}))
    return CliRunner().invoke(app, ["doctor", "-f", str(file), *arguments])


def found(result: Result) -> dict[str, dict[str, str]]:
    return {finding["name"]: finding for finding in json.loads(result.stdout)["findings"]}


def test_a_machine_that_can_serve_is_told_so(tmp_path: Path) -> None:
    result = doctor(tmp_path, {})

    assert result.exit_code == 0, result.output
    assert "memory" in result.stdout
    assert "baton serve" in result.stdout  # how to have the rest examined


def test_json_says_the_same_to_programs(tmp_path: Path) -> None:
    result = doctor(tmp_path, {}, "--json")

    report = json.loads(result.stdout)
    assert report["is_healthy"] is True
    assert report["ways"] == []
    assert found(result)["deployment"]["status"] == "skipped"
    assert found(result)["versions"]["status"] == "ok"


def test_who_has_not_chosen_is_told_what_narrower_weights_would_win_and_lose(
    tmp_path: Path,
) -> None:
    advised = found(doctor(tmp_path, {"device": "cpu"}, "--json"))["weights"]

    assert "--quantize int8" in advised["seen"] and "perplexity" in advised["seen"]
    for settings in ({"quantize": "int8"}, {"dtype": "float16"}, {"device": "cuda"}):
        assert "weights" not in found(doctor(tmp_path, {"device": "cpu", **settings}, "--json"))


def test_a_demand_beyond_the_machine_exits_with_1(tmp_path: Path) -> None:
    result = doctor(tmp_path, {"decode": {"cache": {"memory_gib": 1e6}}}, "--json")

    assert result.exit_code == 1
    assert found(result)["memory"]["status"] == "fail"


def test_a_required_transport_that_cannot_be_had_exits_with_1(tmp_path: Path) -> None:
    result = doctor(tmp_path, {"transfer": {"require": ["nccl"]}}, "--json")

    assert result.exit_code == 1
    assert found(result)["transfer.require"]["status"] == "fail"


def test_a_gateway_that_was_asked_for_and_is_away_exits_with_1(tmp_path: Path) -> None:
    result = doctor(tmp_path, {}, "--json", "--url", "http://127.0.0.1:1")

    assert result.exit_code == 1
    assert found(result)["deployment"]["status"] == "fail"


def test_security_files_that_cannot_be_used_exit_with_1(tmp_path: Path) -> None:
    missing = {"token_file": str(tmp_path / "none")}

    result = doctor(tmp_path, {"security": missing}, "--json")

    assert result.exit_code == 1
    assert "security.token_file: cannot read" in found(result)["security"]["seen"]


def test_a_port_of_somebody_else_exits_with_1(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as stranger:
        gateway = {"grpc_port": stranger.getsockname()[1]}
        result = doctor(tmp_path, {"gateway": gateway}, "--json")

    assert result.exit_code == 1
    assert "gateway.grpc_port" in found(result)["ports"]["seen"]


def test_a_model_that_is_not_here_exits_with_1(tmp_path: Path) -> None:
    result = doctor(tmp_path, {"model": "/no/such/folder"}, "--json")

    assert result.exit_code == 1
    assert found(result)["model"]["status"] == "fail"


def test_a_mistake_in_the_configuration_is_one_line(tmp_path: Path) -> None:
    result = doctor(tmp_path, {"decode": {"cahce": {}}})

    assert result.exit_code == 2
    assert "cahce" in result.stderr
