"""Reads the RayService from manifests, or from values rendered with `helm`."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from baton.core.errors import InvalidConfig

KIND = "RayService"
RELEASE = "baton"
"""The release name; arbitrary, since both sides are rendered with it."""
HELM_TIMEOUT_S = 60.0


@dataclass(frozen=True, slots=True)
class Service:
    """The parts of a RayService that KubeRay evaluates."""

    spec: Mapping[str, Any]
    annotations: Mapping[str, str]


def files_of(names: str) -> tuple[Path, ...]:
    """Value files as in `helm --values`: separated by commas, later ones override earlier ones."""
    whole = Path(names)
    return (whole,) if whole.exists() else tuple(Path(name) for name in names.split(",") if name)


def read_service(paths: Sequence[Path], chart: Path | None) -> Service:
    """Raises InvalidConfig with the remedy."""
    source = ",".join(map(str, paths))
    documents = [document for path in paths for document in _read(path)]
    if not any("kind" in document for document in documents):
        documents = _documents(_render(paths, chart), f"what helm renders of {source}")
    found = [document for document in documents if document.get("kind") == KIND]
    if len(found) != 1:
        names = ", ".join(document["metadata"]["name"] for document in found) or "none"
        raise InvalidConfig(f"{source} must have one {KIND}, and has {names}; give another file")
    [service] = found
    return Service(service["spec"], service["metadata"].get("annotations") or {})


def _read(path: Path) -> list[dict[str, Any]]:
    try:
        return _documents(path.read_text(), str(path))
    except OSError as error:
        raise InvalidConfig(f"cannot read {path}: {error.strerror}") from error


def _documents(text: str, source: str) -> list[dict[str, Any]]:
    try:
        found = list(yaml.safe_load_all(text))
    except yaml.YAMLError as error:
        raise InvalidConfig(f"{source}: not YAML: {' '.join(str(error).split())}") from error
    if not all(document is None or isinstance(document, dict) for document in found):
        raise InvalidConfig(f"{source}: manifests or values are objects; give such a file")
    documents = [document for document in found if document]
    return [item for document in documents for item in document.get("items", [document])]


def _render(paths: Sequence[Path], chart: Path | None) -> str:
    source = ",".join(map(str, paths))
    if chart is None:
        raise InvalidConfig(
            f"{source} has no `kind`, so it has values: give the chart as well (--chart), or what "
            "`helm template` or `kubectl get rayservice -o yaml` print"
        )
    command = ["helm", "template", RELEASE, str(chart), *(f"--values={path}" for path in paths)]
    try:
        run = subprocess.run(command, capture_output=True, text=True, timeout=HELM_TIMEOUT_S)
    except FileNotFoundError:
        raise InvalidConfig(
            "there is no `helm` on PATH to render values with; install it, or give manifests"
        ) from None
    if run.returncode:
        raise InvalidConfig(f"helm cannot render {source}: {' '.join(run.stderr.split())}")
    return run.stdout
