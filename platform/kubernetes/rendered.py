"""The RayService of a file: of manifests, or of values, which the `helm` command then renders."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import yaml

from baton.core.errors import InvalidConfig

KIND = "RayService"
RELEASE = "baton"
"""Any: both sides are rendered under one name."""
HELM_TIMEOUT_S = 60.0


def read_service(path: Path, chart: Path | None) -> dict[str, Any]:
    """`spec` of the RayService. Raises InvalidConfig with the remedy."""
    try:
        text = path.read_text()
    except OSError as error:
        raise InvalidConfig(f"cannot read {path}: {error.strerror}") from error
    documents = _documents(text, str(path))
    if not any("kind" in document for document in documents):
        documents = _documents(_render(path, chart), f"what helm renders of {path}")
    found = [document for document in documents if document.get("kind") == KIND]
    if len(found) != 1:
        names = ", ".join(document["metadata"]["name"] for document in found) or "none"
        raise InvalidConfig(f"{path} must have one {KIND}, and has {names}; give another file")
    spec: dict[str, Any] = found[0]["spec"]
    return spec


def _documents(text: str, source: str) -> list[dict[str, Any]]:
    try:
        found = list(yaml.safe_load_all(text))
    except yaml.YAMLError as error:
        raise InvalidConfig(f"{source}: not YAML: {' '.join(str(error).split())}") from error
    if not all(document is None or isinstance(document, dict) for document in found):
        raise InvalidConfig(f"{source}: manifests or values are objects; give such a file")
    documents = [document for document in found if document]
    return [item for document in documents for item in document.get("items", [document])]


def _render(path: Path, chart: Path | None) -> str:
    if chart is None:
        raise InvalidConfig(
            f"{path} has no `kind`, so it has values: give the chart as well (--chart), or what "
            "`helm template` or `kubectl get rayservice -o yaml` print"
        )
    command = ["helm", "template", RELEASE, str(chart), "--values", str(path)]
    try:
        run = subprocess.run(command, capture_output=True, text=True, timeout=HELM_TIMEOUT_S)
    except FileNotFoundError:
        raise InvalidConfig(
            "there is no `helm` on PATH to render values with; install it, or give manifests"
        ) from None
    if run.returncode:
        raise InvalidConfig(f"helm cannot render {path}: {' '.join(run.stderr.split())}")
    return run.stdout
