"""Whether what is installed is what Baton wants, and the same everywhere."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from importlib.metadata import PackageNotFoundError, requires

from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet

from baton.platform.doctor.finding import Finding, fail, ok, warn
from baton.platform.machine.node import NodeFacts

NAME = "versions"
MUST_BE_EQUAL = ("baton-llm", "torch", "ray", "grpcio")
"""Others differ in ways that no process notices of another."""


def wanted_versions() -> dict[str, SpecifierSet]:
    """What this installation of Baton declares; empty if it is not installed as a package."""
    try:
        declared = requires("baton-llm") or []
    except PackageNotFoundError:
        return {}
    found = [Requirement(text) for text in declared]
    return {one.name: one.specifier for one in found if one.marker is None or one.marker.evaluate()}


def check_versions(found: Mapping[str, str], wanted: Mapping[str, SpecifierSet]) -> Finding:
    unfit = [
        f"{name} {found[name]} (wants {specifier})"
        for name, specifier in wanted.items()
        if name in found and not specifier.contains(found[name], prereleases=True)
    ]
    if unfit:
        remedy = "install them with `pip install -c constraints.txt`"
        return fail(NAME, ", ".join(unfit), remedy)
    shown = ("baton-llm", "python", "torch", "ray", "grpcio", "protobuf")
    return ok(NAME, ", ".join(f"{name} {found[name]}" for name in shown if name in found))


def check_equal_versions(nodes: Sequence[tuple[str, NodeFacts]]) -> Finding:
    """Compare the versions of all replicas and this machine, by what they are called."""
    differing = [
        text for package in (*MUST_BE_EQUAL, "python") for text in _differing(package, nodes)
    ]
    if differing:
        remedy = "run all replicas from one image"
        is_ours = any(text.startswith("baton-llm") for text in differing)
        return (fail if is_ours else warn)("equal versions", "; ".join(differing), remedy)
    return ok("equal versions", f"the same on all {len(nodes)}")


def _differing(package: str, nodes: Sequence[tuple[str, NodeFacts]]) -> Iterable[str]:
    where: dict[str, list[str]] = {}
    for name, facts in nodes:
        found = facts.versions.get(package, "none")
        if package == "python":
            found = found.rpartition(".")[0]  # what differs in the third place does not matter
        where.setdefault(found, []).append(name)
    if len(where) > 1:
        parts = [f"{found} at {', '.join(names)}" for found, names in where.items()]
        yield f"{package} {' but '.join(parts)}"
