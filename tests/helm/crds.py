"""Custom resources held to the schema of their definition, strictly: unknown fields are mistakes.

The definitions are KubeRay's, which are too large to be kept here: they are read from a folder
beside the checkout, where there is one.
"""

from __future__ import annotations

import gzip
from pathlib import Path
from typing import Any

import yaml
from jsonschema import Draft202012Validator  # type: ignore[import-untyped]

DEFINITIONS = Path(__file__).parents[3] / "shared" / "kuberay-crds"
_COPIED = (
    "enum", "pattern", "minimum", "maximum", "minLength", "maxLength", "minItems", "maxItems",
    "minProperties", "maxProperties", "required",
)  # fmt: skip


def strict_schema(structural: Any) -> dict[str, Any]:
    """A JSON schema of what the API server takes: of an object with properties, no others."""
    schema = {key: structural[key] for key in _COPIED if key in structural}
    if structural.get("x-kubernetes-int-or-string"):
        schema["type"] = ["integer", "string"]
    elif "type" in structural:
        schema["type"] = structural["type"]
    if "items" in structural:
        schema["items"] = strict_schema(structural["items"])
    inner = structural.get("additionalProperties")
    if isinstance(inner, dict):
        schema["additionalProperties"] = strict_schema(inner)
    if "properties" in structural:
        properties = structural["properties"].items()
        schema["properties"] = {name: strict_schema(one) for name, one in properties}
        if not structural.get("x-kubernetes-preserve-unknown-fields") and inner is None:
            schema["additionalProperties"] = False
    return schema


def spec_validator(plural: str, version: str) -> Draft202012Validator:
    """Of the `spec` of a kind of KubeRay's."""
    packed = (DEFINITIONS / f"ray.io_{plural}.yaml.gz").read_bytes()
    definition = yaml.load(gzip.decompress(packed), Loader=yaml.CSafeLoader)
    versions = definition["spec"]["versions"]
    [found] = [one for one in versions if one["name"] == version]
    properties = found["schema"]["openAPIV3Schema"]["properties"]
    return Draft202012Validator(strict_schema(properties["spec"]))
