"""What checkov says of the chart's objects: nothing without a reason in `.checkov.yaml`."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest
import yaml
from tests.helm.chart import CHART, OPERATED, Release, all_values, render
from tests.helm.test_chart import pods_as_templates
from tests.tools import needs, program

DIGEST = f"sha256:{'0' * 64}"


@pytest.mark.wide
@needs("checkov")
@pytest.mark.parametrize("name", all_values())
def test_no_policy_is_broken_without_a_reason(name: str, tmp_path: Path) -> None:
    values = all_values()[name]
    values["image"] = {**values.get("image", {}), "digest": DIGEST}
    values["collector"] = {**values.get("collector", {}), "image": f"collector@{DIGEST}"}
    rendered = render(values, Release(api_versions=OPERATED))
    manifests = tmp_path / "all.yaml"
    manifests.write_text(yaml.safe_dump_all([*rendered, *pods_as_templates(rendered)]))

    command = [
        program("checkov"),
        "--config-file",
        str(CHART / ".checkov.yaml"),
        "--file",
        str(manifests),
    ]
    ran = subprocess.run([*command, "--output", "json"], capture_output=True, text=True)
    told = json.loads(ran.stdout)

    failed = told["results"]["failed_checks"]
    assert [(one["check_id"], one["resource"]) for one in failed] == []
    assert told["summary"]["passed"] > 300
