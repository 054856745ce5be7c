"""What a definition of a custom resource refuses: each kind of mistake, and nothing else."""

from __future__ import annotations

import copy
from typing import Any

import pytest
from tests.helm.crds import HAS_RULES, mistakes, refusals, shared, validator_of

POLICY: dict[str, Any] = {
    "apiVersion": "gateway.networking.k8s.io/v1",
    "kind": "BackendTLSPolicy",
    "metadata": {"name": "a", "labels": {"any": "thing"}},
    "spec": {
        "targetRefs": [{"group": "", "kind": "Service", "name": "a"}],
        "validation": {"hostname": "a.example.com", "wellKnownCACertificates": "System"},
    },
}
LISTED: dict[str, Any] = {
    "type": "object",
    "properties": {
        "ports": {
            "type": "array",
            "x-kubernetes-list-type": "map",
            "x-kubernetes-list-map-keys": ["port", "protocol"],
            "items": {
                "type": "object",
                "properties": {
                    "port": {"type": "integer", "format": "int32"},
                    "protocol": {"type": "string", "default": "TCP"},
                },
            },
        },
        "share": {"x-kubernetes-int-or-string": True},
        "note": {"type": "string", "nullable": True},
        "tags": {"type": "array", "x-kubernetes-list-type": "set", "items": {"type": "string"}},
        "free": {"type": "object", "x-kubernetes-preserve-unknown-fields": True},
        "one": {
            "type": "object",
            "properties": {"a": {"type": "string"}, "b": {"type": "string"}},
            "oneOf": [{"required": ["a"]}, {"required": ["b"]}],
        },
    },
}


def of_listed(**fields: Any) -> list[str]:
    return refusals(LISTED, validator_of(LISTED), {"metadata": {}, **fields})


def of_policy(path: str, value: Any) -> list[str]:
    policy = copy.deepcopy(POLICY)
    *parents, last = path.split(".")
    node = policy["spec"]
    for parent in parents:
        node = node[parent]
    node[last] = value
    return mistakes(policy)


def test_what_is_right_is_taken() -> None:
    assert mistakes(POLICY) == []
    assert of_policy("validation.caCertificateRefs", None) == []
    assert (
        of_listed(ports=[{"port": 1}, {"port": 1, "protocol": "UDP"}], share="5%", note=None) == []
    )
    assert of_listed(share=5, tags=["a", "b"], free={"any": {"thing": 1}}, one={"a": ""}) == []


@pytest.mark.parametrize(
    ("path", "value", "told"),
    [
        ("validation.hostnames", ["a"], "hostnames"),
        ("validation.hostname", "A", "does not match"),
        ("validation.hostname", None, "required"),
        ("targetRefs", [], "non-empty"),
        ("targetRefs", [{"kind": "Service", "name": "a"}], "'group' is a required"),
    ],
)
def test_a_field_that_is_unknown_missing_or_wrong_is_told(path: str, value: Any, told: str) -> None:
    [mistake] = of_policy(path, value)

    assert told in mistake


@pytest.mark.parametrize(
    ("fields", "told"),
    [
        ({"ports": [{"port": 1}, {"port": 1, "protocol": "TCP"}]}, "$.ports[1]: [1, \"TCP\"]"),
        ({"ports": [{"port": 2**31}]}, "$.ports[0].port"),
        ({"tags": ["a", "a"]}, "$.tags[1]"),
        ({"share": 0.5}, "$.share"),
        ({"one": {"a": "", "b": ""}}, "$.one"),
        ({"one": {"c": ""}}, "'c'"),
    ],
)  # fmt: skip
def test_what_a_list_has_twice_and_what_is_no_such_value_is_told(fields: Any, told: str) -> None:
    assert told in " ".join(of_listed(**fields))


@pytest.mark.skipif(not HAS_RULES, reason="no common-expression-language")
def test_a_rule_that_is_broken_is_told() -> None:
    authorities = [{"group": "", "kind": "ConfigMap", "name": "a"}]
    target = POLICY["spec"]["targetRefs"][0]

    assert of_policy("validation.caCertificateRefs", authorities) == [
        "$.spec.validation: caCertificateRefs and wellKnownCACertificates exclude each other"
    ]
    assert of_policy("targetRefs", [target, target]) == [
        "$.spec.targetRefs: each target is named once"
    ]


@pytest.mark.skipif(shared() is None or not HAS_RULES, reason="definitions of others are not here")
def test_rules_of_others_are_worked_out() -> None:
    route: dict[str, Any] = {
        "apiVersion": "gateway.networking.k8s.io/v1",
        "kind": "HTTPRoute",
        "metadata": {"name": "a"},
        "spec": {
            "parentRefs": [{"name": "public"}],
            "rules": [{"timeouts": {"request": "1s", "backendRequest": "2s"}}],
        },
    }

    assert [one.partition(": ")[0] for one in mistakes(route)] == ["$.spec.rules[0].timeouts"]
