"""The Dockerfile keeps the rules of hadolint that matter here, and fits the tree and the chart."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass

import pytest
import yaml
from packaging.specifiers import SpecifierSet
from tests.install.pins import ROOT, extras

CHART = ROOT / "helm" / "baton"


@dataclass(frozen=True, slots=True)
class Instruction:
    name: str
    text: str
    stage: int


def instructions() -> Iterator[Instruction]:
    """Each on one line, without comments."""
    text = re.sub(r"^\s*#.*\n", "", (ROOT / "Dockerfile").read_text(), flags=re.MULTILINE)
    stage = -1
    for line in re.sub(r"\\\n", "", text).splitlines():
        if line.strip():
            name, rest = line.split(maxsplit=1)
            stage += name == "FROM"
            yield Instruction(name, " ".join(rest.split()), stage)


def all_of(name: str) -> list[Instruction]:
    return [one for one in instructions() if one.name == name]


def of_last_stage(name: str) -> list[Instruction]:
    return [one for one in all_of(name) if one.stage == all_of("FROM")[-1].stage]


def arguments() -> dict[str, str]:
    """With their defaults; the first wins."""
    pairs = [one.text.partition("=") for one in reversed(all_of("ARG"))]
    return {name: default for name, _, default in pairs if default}


def test_images_are_pinned_to_a_version_and_a_distribution() -> None:
    assert {one.text.split(" AS ")[0] for one in all_of("FROM")} == {"${BASE}"}
    assert arguments()["BASE"] == "python:${PYTHON}-slim-${DEBIAN}"
    assert re.fullmatch(r"3\.\d+\.\d+", arguments()["PYTHON"])


def test_its_python_is_one_that_baton_runs_on() -> None:
    project = (ROOT / "pyproject.toml").read_text()
    [admitted] = re.findall(r'requires-python = "(.*)"', project)

    assert arguments()["PYTHON"] in SpecifierSet(admitted)


def test_what_apt_and_pip_leave_behind_is_not_in_a_layer() -> None:
    runs = [one.text for one in all_of("RUN")]
    with_apt = [text for text in runs if "apt-get install" in text]

    assert with_apt
    assert all("--no-install-recommends" in text for text in with_apt)
    assert all("rm -rf /var/lib/apt/lists/*" in text for text in with_apt)
    by_pip = [text for text in runs if re.search(r"(?<!uv )pip install", text)]
    assert all("pip install --no-cache-dir" in text for text in by_pip)
    assert "UV_NO_CACHE=1" in " ".join(one.text for one in all_of("ENV"))


def test_every_package_has_the_version_of_the_constraints() -> None:
    installs = re.findall(
        r"(?:uv )?pip install.*?(?=&&|;|$)", " ".join(r.text for r in all_of("RUN"))
    )

    assert len(installs) == 5
    assert [
        text for text in installs if "-c constraints.txt" not in text and "--no-deps" not in text
    ] == []


def test_extras_that_are_installed_exist() -> None:
    asked = re.findall(r"--extra (\w+)", " ".join(run.text for run in all_of("RUN")))

    assert set(asked) == {"telemetry", "kubernetes", "gpu"}
    assert set(asked) <= set(extras())


@pytest.mark.parametrize("forbidden", ["ADD", "MAINTAINER", "ONBUILD"])
def test_instructions_that_surprise_are_not_used(forbidden: str) -> None:
    assert all_of(forbidden) == []


@pytest.mark.parametrize(
    "forbidden", [r"\bsudo\b", r"(?<!/)\bapt\b(?![-/])", r"^cd |&& cd ", r"curl|wget"]
)
def test_shells_do_nothing_that_cannot_be_seen(forbidden: str) -> None:
    assert not [one.text for one in all_of("RUN") if re.search(forbidden, one.text)]


def test_shells_with_pipes_fail_with_their_first_command() -> None:
    assert {one.text for one in all_of("SHELL")} == {'["/bin/bash", "-o", "pipefail", "-c"]'}
    assert {one.stage for one in all_of("SHELL")} == {0, 1}


def test_the_image_runs_as_the_user_of_the_charts_pods() -> None:
    pod = (CHART / "templates" / "_pod.tpl").read_text()
    [user] = of_last_stage("USER")
    uid, gid = user.text.split(":")

    assert re.findall(r"runAsUser: (\d+)", pod) == [uid]
    assert re.findall(r"runAsGroup: (\d+)", pod) == [gid]
    assert f"--uid {uid}" in of_last_stage("RUN")[0].text
    assert "mountPath: /home/baton" in pod
    assert [one.text for one in of_last_stage("WORKDIR")] == ["/home/baton"]


def test_it_starts_without_a_shell() -> None:
    [command] = of_last_stage("CMD")
    [health] = of_last_stage("HEALTHCHECK")

    assert json.loads(command.text)[:2] == ["baton", "serve"]
    assert json.loads(health.text[health.text.index("[") :])[0] == "python"


def test_only_what_was_built_is_in_it() -> None:
    assert [one.text for one in of_last_stage("COPY")] == ["--from=build /opt/baton /opt/baton"]
    assert not [one for one in all_of("ENV") if re.search("TOKEN|SECRET|PASSWORD|KEY", one.text)]


def test_the_build_sees_what_the_wheel_is_made_of_and_nothing_else() -> None:
    ignored, *admitted = (ROOT / ".dockerignore").read_text().split()
    names = {line.removeprefix("!") for line in admitted if line.startswith("!")}
    linked = {path.name for path in (ROOT / "src" / "baton").iterdir() if path.is_symlink()}

    assert ignored == "*"
    assert all((ROOT / name).exists() for name in names)
    assert linked <= names
    assert {"pyproject.toml", "constraints.txt", "hatch_build.py", "examples/demo_model"} <= names


def test_the_chart_asks_for_the_ray_that_is_pinned() -> None:
    [ray] = re.findall(r"^ray==(.*)$", (ROOT / "constraints.txt").read_text(), re.MULTILINE)

    assert yaml.safe_load((CHART / "values.yaml").read_text())["rayVersion"] == ray
