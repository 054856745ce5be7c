"""What alerts make of series that are made up, by Prometheus' own evaluation."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.tools import needs, program

RULES = Path(__file__).parents[3] / "helm" / "baton" / "rules" / "baton.yaml"
CASES = Path(__file__).parent / "alerts_test.yaml"
ROLES = ("prefill", "decode")
needs_promtool = needs("promtool")


def promtool(*args: str | Path) -> tuple[int, str]:
    """Its exit status, and all it says."""
    ran = subprocess.run([program("promtool"), *args], capture_output=True, text=True)
    return ran.returncode, ran.stdout + ran.stderr


def test_every_alert_has_a_case_in_which_it_fires_and_one_in_which_it_does_not() -> None:
    alerts = {
        rule["alert"]
        for group in yaml.safe_load(RULES.read_text())["groups"]
        for rule in group["rules"]
        if "alert" in rule
    }

    cases = [
        (case["alertname"], bool(case["exp_alerts"]))
        for test in yaml.safe_load(CASES.read_text())["tests"]
        for case in test["alert_rule_test"]
    ]

    assert set(cases) == {(alert, fires) for alert in alerts for fires in (False, True)}


@pytest.mark.wide
@needs_promtool
def test_prometheus_takes_the_rules_and_each_alert_fires_when_its_cases_say() -> None:
    assert promtool("check", "rules", RULES)[0] == 0

    status, told = promtool("test", "rules", CASES)

    assert status == 0, told


@pytest.mark.wide
@needs_promtool
@pytest.mark.parametrize("label", ["namespace", "release"])
def test_a_release_in_need_is_not_hidden_by_another_of_the_same_model(
    tmp_path: Path, label: str
) -> None:
    """The cases of two models, of which one is bad, told of two releases of one model."""
    sick = {"model": "m", label: "sick"}
    cases = [
        case
        for case in yaml.safe_load(CASES.read_text())["tests"]
        if 'model="bad"' in str(case["input_series"])
    ]
    for case in cases:
        for one in case["input_series"]:
            for name, whose in (("bad", "sick"), ("good", "well")):
                there = f'model="m",{label}="{whose}"'
                one["series"] = one["series"].replace(f'model="{name}"', there)
        for expected in case["alert_rule_test"]:
            for alert in expected["exp_alerts"]:
                alert["exp_labels"] |= sick
                told = alert["exp_annotations"]
                told["summary"] = re.sub(r"\bbad\b", "m", told["summary"])

    status, told = run_cases(tmp_path, cases)

    assert status == 0, told
    assert len(cases) >= 8


AWAY = {
    "baton_worker_groups_looks_total{result='away'%s}": "0+1x40",
    "baton_worker_groups_waits{cause='pods'%s}": "0x40",
}
ANSWERS = {
    "baton_worker_groups_looks_total{result='ok'%s}": "0+12x40",
    "baton_worker_groups_waits{cause='pods'%s}": "0x40",
}
PATCHES = "baton_worker_groups_patches_total{object='RayCluster',result='%s'%%s}"
OUTCOMES = "baton_planner_outcomes_total{model='m',outcome='%s'%%s}"
FOLLOWED = "baton_gateway_followed_groups{model='m'%s}"


@pytest.mark.wide
@needs_promtool
@pytest.mark.parametrize("label", ["namespace", "release"])
@pytest.mark.parametrize(
    ("name", "sick", "well"),
    [
        ("BatonGroupsAway", AWAY, ANSWERS),
        ("BatonGroupsAway", {FOLLOWED: "1x40"}, {FOLLOWED: "1x40"} | ANSWERS),
        (
            "BatonGroupsBlocked",
            {"baton_worker_groups_waits{cause='quota'%s}": "1x40"},
            {"baton_worker_groups_waits{cause='quota'%s}": "0x40"},
        ),
        (
            "BatonGroupsConflicting",
            {PATCHES % "conflict": "0+2x40", PATCHES % "ok": "1x40"},
            {PATCHES % "conflict": "0x40", PATCHES % "ok": "0+9x40"},
        ),
        (
            "BatonPlannerStuck",
            {OUTCOMES % "not done": "0+6x40"},
            {OUTCOMES % "not done": "0+6x40", OUTCOMES % "scaled": "0+6x40"},
        ),
    ],
)
def test_worker_groups_and_planners_are_told_apart_by_release(
    tmp_path: Path, label: str, name: str, sick: dict[str, str], well: dict[str, str]
) -> None:
    series = {
        one % f",{label}='{whose}'": values
        for whose, those in (("sick", sick), ("well", well))
        for one, values in those.items()
    }

    assert fires(tmp_path, name, series, "35m", whose=f'{label}="sick"')
    assert not fires(tmp_path, name, series, "35m", whose=f'{label}="well"')


def fires(tmp_path: Path, name: str, series: dict[str, str], at: str, *, whose: str = "") -> bool:
    """Whether the alert does at that time; what it says is not looked at."""
    alerts = f'ALERTS{{alertname="{name}", alertstate="firing", {whose}}}'
    asked = {
        "interval": "1m",
        "input_series": [{"series": one, "values": values} for one, values in series.items()],
        "promql_expr_test": [
            {
                "expr": f"count({alerts}) or vector(0)",
                "eval_time": at,
                "exp_samples": [{"labels": "{}", "value": 1}],
            }
        ],
    }
    status, told = run_cases(tmp_path, [asked])
    assert "SUCCESS" in told or "got:" in told, told
    return status == 0


def run_cases(tmp_path: Path, cases: Sequence[dict[str, Any]]) -> tuple[int, str]:
    test = tmp_path / "test.yaml"
    rules = {"rule_files": [str(RULES)], "evaluation_interval": "1m"}
    test.write_text(json.dumps(rules | {"tests": cases}))
    return promtool("test", "rules", test)


@pytest.mark.wide
@needs_promtool
@pytest.mark.parametrize(("reason", "is_failure"), [("cancelled", False), ("failed", True)])
def test_handoffs_that_nobody_wants_any_more_are_no_failures(
    tmp_path: Path, reason: str, is_failure: bool
) -> None:
    labels = 'model="m",role="decode",replica="d"'
    series = {
        f"baton_replica_transfers_reserved_total{{{labels}}}": "0+60x40",
        f"baton_replica_transfers_refused_total{{{labels}}}": "0x40",
        f'baton_replica_transfers_aborted_total{{{labels},side="sending"}}': "0+60x40",
        f'baton_replica_transfers_aborted_total{{{labels},side="receiving",reason="{reason}"}}': (
            "0+60x40"
        ),
    }

    assert fires(tmp_path, "BatonHandoffsFailing", series, "30m") is is_failure


@pytest.mark.wide
@needs_promtool
@pytest.mark.parametrize(("values", "is_missing"), [("1x20 stale", True), ("1x60", False)])
def test_a_pool_whose_last_replica_went_is_missing(
    tmp_path: Path, values: str, is_missing: bool
) -> None:
    series = {
        'baton_replica_engine_info{model="m",role="prefill",replica="p"}': values,
        'baton_replica_engine_info{model="m",role="decode",replica="d"}': "1x60",
    }

    assert fires(tmp_path, "BatonReplicasMissing", series, "40m") is is_missing


@pytest.mark.wide
@needs_promtool
@pytest.mark.parametrize(("of_the_third", "is_missing"), [("1x60", False), ("1x20 stale", True)])
def test_a_replica_that_took_the_other_role_is_not_missing_but_one_that_went_then_is(
    tmp_path: Path, of_the_third: str, is_missing: bool
) -> None:
    prefill, decode = (f'baton_replica_engine_info{{model="m",role="{r}"' for r in ROLES)
    series = {
        f'{prefill},replica="a"}}': "1x20 stale",
        f'{decode},replica="a"}}': "_x20 1x40",
        f'{prefill},replica="b"}}': "1x60",
        f'{prefill},replica="c"}}': of_the_third,
        f'{decode},replica="d"}}': "1x60",
    }

    assert fires(tmp_path, "BatonReplicasMissing", series, "40m") is is_missing
