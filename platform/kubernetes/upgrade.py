"""Predicts how KubeRay applies a change of a RayService.

    serveConfigV2                      applied to the running cluster
    a group at the end of the list     added to the running cluster, whose whole spec is written
    counts, tolerations, gates         not compared: ignored until the spec is written
    anything else of rayClusterConfig  a new cluster; ignored where upgradeStrategy.type is None
    annotations of the RayService      the initializing timeout is read at every reconcile; the
    others are copied to a cluster that is created, or whose spec is written

KubeRay compares a hash of the RayCluster's spec without the third row (version 1.7:
`GenerateHashWithoutReplicasAndWorkersToDelete`), once of all groups and once of as many as there
were.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any

import yaml

Spec = Mapping[str, Any]
"""`spec` of a RayService."""
Keys = tuple[str | int, ...]
"""The path to a value."""

CLUSTER, SERVE = "rayClusterConfig", "serveConfigV2"
TIMEOUT = "ray.io/initializing-timeout"
"""The only annotation that KubeRay reads from the RayService itself."""
NOT_COMPARED_OF_PODS = ("tolerations", "schedulingGates")
TOLD_TO_REPLICAS = (
    "num_replicas", "user_config", "max_ongoing_requests", "max_queued_requests",
    "autoscaling_config", "graceful_shutdown_wait_loop_s", "graceful_shutdown_timeout_s",
    "health_check_period_s", "health_check_timeout_s", "logging_config",
)  # fmt: skip
"""Deployment settings that Serve changes without restarting replicas."""


class Outcome(StrEnum):
    IN_PLACE = "in place"
    RESTART = "in place, replicas restart"
    NEW_CLUSTER = "new cluster"
    IGNORED = "ignored"


@dataclass(frozen=True, slots=True)
class Effect:
    """One changed value, and its effect."""

    path: str
    before: Any
    """The old value; None if there was none."""
    after: Any
    outcome: Outcome
    reason: str


@dataclass(frozen=True, slots=True)
class _Difference:
    keys: Keys
    path: str
    before: Any
    after: Any

    def becomes(self, outcome: Outcome, reason: str) -> Effect:
        return Effect(self.path, self.before, self.after, outcome, reason)


def predict(old: Spec, new: Spec, *, has_new_operator: bool = False) -> list[Effect]:
    """All changed values with their effects. A new version of the operator writes the running
    cluster's spec once, whatever has changed."""
    of_cluster = _of_cluster(old.get(CLUSTER) or {}, new, has_new_operator)
    of_serve = list(_of_serve(old.get(SERVE) or "", new.get(SERVE) or ""))
    if any(effect.outcome is Outcome.NEW_CLUSTER for effect in of_cluster):
        begins = "the new cluster begins with it"
        of_serve = [
            replace(effect, outcome=Outcome.NEW_CLUSTER, reason=begins) for effect in of_serve
        ]
    of_service = [
        difference.becomes(Outcome.IN_PLACE, "of the RayService itself")
        for difference in _differences(_service(old), _service(new))
    ]
    return [*of_service, *of_serve, *of_cluster]


def predict_annotations(
    old: Mapping[str, str], new: Mapping[str, str], of_spec: Sequence[Effect]
) -> list[Effect]:
    """Effects of changed annotations; `of_spec`: the effects of the spec's changes."""
    of_cluster = {one.outcome for one in of_spec if one.path.startswith(CLUSTER)}
    effects = []
    for one in _differences(old, new, ("metadata", "annotations")):
        if one.keys[-1] == TIMEOUT:
            effects.append(one.becomes(Outcome.IN_PLACE, "read at every look of the operator"))
        elif Outcome.NEW_CLUSTER in of_cluster:
            effects.append(one.becomes(Outcome.NEW_CLUSTER, "the new cluster is made with it"))
        elif Outcome.IN_PLACE in of_cluster:
            effects.append(one.becomes(Outcome.IN_PLACE, "written with the running cluster's spec"))
        else:
            reason = "not compared: the RayCluster has it after the next change that writes it"
            effects.append(one.becomes(Outcome.IGNORED, reason))
    return effects


def _service(spec: Spec) -> dict[str, Any]:
    return {key: value for key, value in spec.items() if key not in (CLUSTER, SERVE)}


def _of_cluster(old: Spec, service: Spec, has_new_operator: bool) -> list[Effect]:
    new = service.get(CLUSTER) or {}
    found = list(_differences(old, new, (CLUSTER,)))
    num_old = len(old.get("workerGroupSpecs") or ())
    uncompared = [one for one in found if _is_not_compared(one.keys)]
    appended = [one for one in found if _is_appended(one.keys, num_old)]
    compared = [one for one in found if one not in uncompared and one not in appended]
    if compared and _is_frozen(service):
        reason = "upgradeStrategy.type is None: only a RayService made anew will have it"
        return [one.becomes(Outcome.IGNORED, reason) for one in found]
    if compared:
        reason = "not compared, but the new cluster is made with it"
        return [one.becomes(Outcome.NEW_CLUSTER, _why(one)) for one in compared + appended] + [
            one.becomes(Outcome.NEW_CLUSTER, reason) for one in uncompared
        ]
    effects = [
        one.becomes(Outcome.IN_PLACE, "a group at the end is added to the running cluster")
        for one in appended
    ]
    if appended or has_new_operator:
        cause = "the new group" if appended else "a new operator"
        reason = f"the running cluster's spec is written because of {cause}, and counts with it"
        return effects + [one.becomes(Outcome.IN_PLACE, reason) for one in uncompared]
    return [one.becomes(Outcome.IGNORED, _remedy(one)) for one in uncompared]


def _remedy(difference: _Difference) -> str:
    if any(key in difference.keys for key in NOT_COMPARED_OF_PODS):
        return "not compared: pods have it after the next change that makes a new cluster"
    return "not compared: scale the RayCluster as well, or let a pool grow by Serve"


def _is_frozen(service: Spec) -> bool:
    return (service.get("upgradeStrategy") or {}).get("type") == "None"


def _is_appended(keys: Keys, num_old: int) -> bool:
    match keys[1:]:
        case ("workerGroupSpecs", int(place)):
            return place >= num_old
    return False


def _is_not_compared(keys: Keys) -> bool:
    match keys[1:]:
        case ("upgradeStrategy", *_):
            return True
        case ("workerGroupSpecs", int(), "replicas" | "minReplicas" | "maxReplicas"):
            return True
        case ("workerGroupSpecs", int(), "scaleStrategy", *_):  # workersToDelete: all there is
            return True
        case ("headGroupSpec", *of_pod) | ("workerGroupSpecs", int(), *of_pod):
            return of_pod[:2] == ["template", "spec"] and of_pod[2] in NOT_COMPARED_OF_PODS
    return False


def _why(difference: _Difference) -> str:
    if difference.keys[-1] == "groupName":
        return "groups are identified by their place: append new ones at the end"
    return "part of the RayCluster's hash"


def _of_serve(old: str, new: str) -> Iterator[Effect]:
    before, after = yaml.safe_load(old) or {}, yaml.safe_load(new) or {}
    for one in _differences(before, after, (SERVE,)):
        match one.keys[1:]:
            case ("applications", int(), "deployments", int(), str(key), *_):
                is_told = key in TOLD_TO_REPLICAS
            case ("applications", int(), "args" | "import_path" | "runtime_env", *_):
                is_told = False
            case _:
                is_told = True
        if is_told:
            yield one.becomes(Outcome.IN_PLACE, "Serve passes it to what runs")
        else:
            reason = "Serve starts all that is made of it anew, some replicas at a time"
            yield one.becomes(Outcome.RESTART, reason)


def _differences(old: Any, new: Any, keys: Keys = (), path: str = "") -> Iterator[_Difference]:
    """Changed leaves; subtrees on one side only are reported as a whole."""
    path = path or ".".join(map(str, keys))
    if isinstance(old, Mapping) and isinstance(new, Mapping):
        for key in [*old, *(key for key in new if key not in old)]:
            inner = f"{path}.{key}" if path else str(key)
            yield from _differences(old.get(key), new.get(key), (*keys, key), inner)
    elif isinstance(old, list) and isinstance(new, list):
        for place in range(max(len(old), len(new))):
            one = old[place] if place < len(old) else None
            other = new[place] if place < len(new) else None
            inner = f"{path}[{_name(other or one) or place}]"
            yield from _differences(one, other, (*keys, place), inner)
    elif old != new:
        yield _Difference(keys, path, old, new)


def _name(item: Any) -> str:
    """The name of a list element for messages."""
    if not isinstance(item, Mapping):
        return ""
    return str(item.get("groupName") or item.get("name") or "")
