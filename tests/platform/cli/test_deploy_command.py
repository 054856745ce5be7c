"""`baton deploy` and `scale` by the word of a cluster that answers from a dictionary."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import pytest
from tests.platform.cli.wrong_starts import WRONG_STARTS
from typer.testing import CliRunner

from baton.core.replicas import Role
from baton.platform.cli.commands import deploy as deploy_command
from baton.platform.cli.commands import scale as scale_command
from baton.platform.cli.main import app
from baton.platform.cluster.applications import applications
from baton.platform.cluster.applications.serve_document import application, configuration, scaled
from baton.platform.config.deployment import DeploymentConfig, override

run = CliRunner().invoke


@pytest.fixture
def programs() -> dict[str, Any]:
    """The ports of gateways that nobody deployed by a document, by the application's name."""
    return {}


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch, programs: dict[str, Any]) -> dict[str, Any]:
    """What is deployed, by name; what is sent takes its place."""
    documents: dict[str, Any] = {}

    def send(sent: list[dict[str, Any]]) -> None:
        documents.clear()
        documents.update({one["name"]: one for one in sent})

    def served() -> dict[str, Any]:
        known = dict.fromkeys(programs) | documents
        return {
            name: {
                "deployed_app_config": document,
                "status": "RUNNING",
                "deployments": {"Gateway": {}},
            }
            for name, document in known.items()
        }

    def ports(name: str, timeout_s: float) -> tuple[int, int]:
        if programs[name] is None:
            raise TimeoutError
        found: tuple[int, int] = programs[name]
        return found

    monkeypatch.setattr(applications, "gateway_ports", ports)
    monkeypatch.setattr(applications, "sole_change", nullcontext)
    monkeypatch.setattr(applications, "served", served)
    monkeypatch.setattr(applications, "start_serve", lambda: None)
    monkeypatch.setattr(applications, "_send", send)
    monkeypatch.setattr(applications, "registry_time", lambda name: time.time())
    for command in (deploy_command, scale_command):
        monkeypatch.setattr(command, "connected", lambda address: nullcontext())
    return documents


def test_a_dry_run_says_what_changes_in_place_and_what_restarts_and_does_nothing(
    cluster: dict[str, Any], tmp_path: Path
) -> None:
    cluster["baton"] = application(DeploymentConfig())
    before = dict(cluster)
    (tmp_path / "a.yaml").write_text("prefill: {replicas: 3}\n")

    in_place = run(app, ["deploy", "-f", str(tmp_path / "a.yaml"), "--dry-run"]).output
    restart = run(app, ["deploy", "--num-blocks", "9", "--max-waiting", "7", "--dry-run"]).output

    assert "in place prefill.replicas  1 -> 3" in in_place
    assert "no process is started anew" in in_place
    assert "restart  decode.cache.num_blocks" in restart
    assert "in place gateway.max_waiting" in restart
    assert "all processes are started anew" in restart
    assert cluster == before


def test_a_second_model_goes_beside_the_first_and_never_on_its_ports(
    cluster: dict[str, Any],
) -> None:
    assert run(app, ["deploy", "--no-wait"]).exit_code == 0
    first = cluster["baton"]

    refused = run(app, ["deploy", "draft", "--app-name", "second", "--no-wait"])
    ports = ["--port", "0", "--grpc-port", "0"]
    taken = run(app, ["deploy", "draft", "--app-name", "second", *ports, "--no-wait"])

    assert refused.exit_code == 2
    assert "8000 is a port of the application 'baton'" in refused.output
    assert taken.exit_code == 0
    assert cluster == {"baton": first, "second": cluster["second"]}
    assert cluster["second"]["args"]["model"] == "draft"


def test_scaling_leaves_the_others_and_the_args_alone(cluster: dict[str, Any]) -> None:
    one = override(DeploymentConfig(), {"ray.app_name": "one"})
    own = {"gateway.port": 9000, "gateway.grpc_port": 9001, "decode.cache.num_blocks": 9}
    two = override(one, {"ray.app_name": "two", **own})
    cluster |= {"one": application(one), "two": application(two)}
    before, args = cluster["one"], cluster["two"]["args"]

    ran = run(app, ["scale", "decode=3", "--app-name", "two", "--no-wait"])
    unknown = run(app, ["scale", "decode=3", "--app-name", "three", "--no-wait"])

    assert ran.exit_code == 0, ran.output
    assert cluster["one"] == before and cluster["two"]["args"] == args
    [decode] = [it for it in cluster["two"]["deployments"] if it["name"] == "Decode"]
    assert decode["num_replicas"] == 3
    assert unknown.exit_code == 2 and "there are: one, two" in " ".join(unknown.output.split())


def test_two_who_deploy_at_once_lose_nothing_of_each_other(
    cluster: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The other is done while one waits for Serve to start, or for its turn."""
    cluster["baton"] = application(DeploymentConfig())
    own = {"ray.app_name": "other", "gateway.port": 0, "gateway.grpc_port": 0}
    other = application(override(DeploymentConfig(), own))

    monkeypatch.setattr(applications, "start_serve", lambda: cluster.update(other=other))
    deployed = run(app, ["deploy", "--no-wait"])

    assert deployed.exit_code == 0, deployed.output
    assert cluster["other"] == other

    @contextmanager
    def turn() -> Iterator[None]:
        cluster["baton"] = scaled(cluster["baton"], {"prefill": 3})
        yield

    monkeypatch.setattr(applications, "sole_change", turn)
    assert run(app, ["scale", "decode=2", "--no-wait"]).exit_code == 0
    wanted = configuration(cluster["baton"])
    assert (wanted.prefill.replicas, wanted.decode.replicas) == (3, 2)


@pytest.mark.parametrize("command", [["deploy", "--no-wait"], ["deploy", "--dry-run"]])
@pytest.mark.parametrize("whose", ["a program", "other code"])
def test_an_application_that_somebody_else_made_is_not_taken_over(
    cluster: dict[str, Any], programs: dict[str, Any], command: list[str], whose: str
) -> None:
    if whose == "a program":
        programs["baton"] = None
    else:
        cluster["baton"] = {"name": "baton", "import_path": "shop:app"}
    before = dict(cluster)

    refused = run(app, command)

    assert refused.exit_code == 2
    assert "--app-name" in refused.output
    assert cluster == before


def test_ports_of_what_was_started_without_a_document_are_taken_as_well(
    cluster: dict[str, Any], programs: dict[str, Any]
) -> None:
    programs |= {"starting": None, "served": (7000, 8000)}

    refused = run(app, ["deploy", "--no-wait"])
    taken = run(app, ["deploy", "--port", "7100", "--no-wait"])

    assert refused.exit_code == 2
    assert "8000 is a port of the application 'served'" in " ".join(refused.output.split())
    assert taken.exit_code == 0, taken.output


def test_the_planner_gives_way_to_whoever_sets_numbers_by_hand_and_a_file_to_the_planner(
    cluster: dict[str, Any], tmp_path: Path
) -> None:
    def wanted() -> dict[Role, int]:
        config = configuration(cluster["baton"])
        return {role: config.pool(role).replicas for role in Role}

    (tmp_path / "a.yaml").write_text("planner: {enabled: true}\n")
    file = ["deploy", "-f", str(tmp_path / "a.yaml"), "--no-wait"]
    assert run(app, file).exit_code == 0
    one = dict.fromkeys(Role, 1)
    three = {**one, Role.PREFILL: 3}

    assert applications.apply_planned("baton", one, three, {})
    assert not applications.apply_planned("baton", one, three, {})  # it looked at other numbers
    again = run(app, file)
    assert wanted() == three and "the planner has set 1 decode and 3 prefill" in again.output
    assert run(app, ["scale", "decode=2", "--no-wait"]).exit_code == 0
    held = wanted()
    assert not applications.apply_planned("baton", held, one, {})
    assert run(app, ["scale", "decode=2", "--hold", "0", "--no-wait"]).exit_code == 0
    assert run(app, ["scale", "gateway=2", "--no-wait"]).exit_code == 0  # which it leaves alone
    assert applications.apply_planned("baton", held, one, {}) and wanted() == one


@pytest.mark.parametrize(
    "wrong", ["an architecture misspelt", "a shard missing", "a tensor missing"]
)
def test_a_model_that_no_node_could_serve_is_not_deployed(
    cluster: dict[str, Any], tmp_path: Path, wrong: str
) -> None:
    (start,) = (one for one in WRONG_STARTS if one.name == wrong)

    told = run(app, ["deploy", *start.words(tmp_path), "--no-wait"])

    assert told.exit_code == 2 and start.complaint in told.stderr.replace("\n", " ")
    assert cluster == {}
