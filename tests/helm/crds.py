"""Custom resources held to their definitions, as strictly as an API server with `fieldValidation:
Strict` holds them.

    nulls go, defaults come  ->  structure, unknown fields  ->  keys of lists  ->  rules (CEL)

Definitions of others are too large to be kept here: they are read from a folder `shared` beside or
above the checkout, where there is one. Our own in `definitions` are of kinds that it lacks. Rules
want `common-expression-language`, without which they are passed over.
"""

from __future__ import annotations

import copy
import functools
import gzip
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml
from jsonschema import Draft202012Validator  # type: ignore[import-untyped]

try:
    import cel
except ImportError:
    HAS_RULES = False
else:
    HAS_RULES = True

Structural = Mapping[str, Any]
"""A structural schema, as a definition writes it."""

OWN = Path(__file__).with_name("definitions")
_FOLDERS = ("kuberay-crds", "other-crds")
_COPIED = (
    "enum", "pattern", "minimum", "maximum", "multipleOf", "minLength", "maxLength", "minItems",
    "maxItems", "uniqueItems", "minProperties", "maxProperties", "required",
)  # fmt: skip
_BOUNDS = {"int32": 2**31, "int64": 2**63}
_OF_ALL = {"apiVersion": {"type": "string"}, "kind": {"type": "string"}, "metadata": {}}


def shared() -> Path | None:
    """The folder of the definitions of others."""
    above = (parent / "shared" for parent in Path(__file__).resolve().parents)
    return next((one for one in above if all((one / name).is_dir() for name in _FOLDERS)), None)


@functools.cache
def structural_schemas() -> Mapping[tuple[str, str], Structural]:
    """By apiVersion and kind."""
    files = sorted(OWN.glob("*.yaml"))
    if there := shared():
        files += [file for name in _FOLDERS for file in sorted((there / name).glob("*.yaml.gz"))]
    found = {}
    for file in files:
        text = gzip.decompress(file.read_bytes()) if file.suffix == ".gz" else file.read_bytes()
        for definition in yaml.load_all(text, Loader=yaml.CSafeLoader):
            spec = definition["spec"]
            for version in spec["versions"]:
                key = (f"{spec['group']}/{version['name']}", spec["names"]["kind"])
                found[key] = version["schema"]["openAPIV3Schema"]
    return found


def is_defined(manifest: Mapping[str, Any]) -> bool:
    return (manifest["apiVersion"], manifest["kind"]) in structural_schemas()


def mistakes(manifest: Mapping[str, Any]) -> list[str]:
    """What an API server would refuse a new object for. Raises KeyError for an unknown kind."""
    key = (manifest["apiVersion"], manifest["kind"])
    return refusals(structural_schemas()[key], _validator(key), manifest)


def refusals(
    structural: Structural, validator: Draft202012Validator, manifest: Mapping[str, Any]
) -> list[str]:
    filled = _filled(structural, copy.deepcopy(dict(manifest)))
    of_structure = [
        f"{one.json_path}: {one.message[:200]}" for one in validator.iter_errors(filled)
    ]
    if of_structure:
        return of_structure  # rules are worked out for what is well-formed alone
    of_rules = _broken_rules(structural, filled, "$") if HAS_RULES else ()
    return [*_repeated(structural, filled, "$"), *of_rules]


@functools.cache
def _validator(key: tuple[str, str]) -> Draft202012Validator:
    return validator_of(structural_schemas()[key])


def validator_of(structural: Structural) -> Draft202012Validator:
    schema = _json_schema(structural)
    schema["properties"] |= _OF_ALL
    return Draft202012Validator(schema)


def _json_schema(structural: Structural) -> dict[str, Any]:
    """Of an object with properties it takes no others."""
    schema = _of_one_value(structural)
    if "items" in structural:
        schema["items"] = _json_schema(structural["items"])
    for junctor in ("allOf", "anyOf", "oneOf"):
        if junctor in structural:
            schema[junctor] = [_open(_json_schema(one)) for one in structural[junctor]]
    if "not" in structural:
        schema["not"] = _open(_json_schema(structural["not"]))
    values = structural.get("additionalProperties")
    if isinstance(values, Mapping):
        schema["additionalProperties"] = _json_schema(values)
    if "properties" in structural:
        properties = structural["properties"].items()
        schema["properties"] = {name: _json_schema(one) for name, one in properties}
        if structural.get("x-kubernetes-embedded-resource"):
            schema["properties"] |= _OF_ALL
        if not structural.get("x-kubernetes-preserve-unknown-fields") and not values:
            schema["additionalProperties"] = False
    return schema


def _of_one_value(structural: Structural) -> dict[str, Any]:
    """What is said of the value itself."""
    schema = {key: structural[key] for key in _COPIED if key in structural}
    types = [structural["type"]] if "type" in structural else []
    if structural.get("x-kubernetes-int-or-string"):
        types = ["integer", "string"]
    if types:
        schema["type"] = types + ["null"] * bool(structural.get("nullable"))
    for side in ("minimum", "maximum"):
        if structural.get(f"exclusive{side.title()}"):
            schema[f"exclusive{side.title()}"] = schema.pop(side)
    if structural.get("type") == "integer" and structural.get("format") in _BOUNDS:
        bound = _BOUNDS[structural["format"]]
        schema = {"minimum": -bound, "maximum": bound - 1} | schema
    return schema


def _open(schema: dict[str, Any]) -> dict[str, Any]:
    """A part of a junction: it names some fields of an object, and refuses no others."""
    kept = {key: value for key, value in schema.items() if key != "additionalProperties"}
    if "properties" in kept:
        kept["properties"] = {name: _open(one) for name, one in kept["properties"].items()}
    if "items" in kept:
        kept["items"] = _open(kept["items"])
    return kept


def _inner(structural: Structural, key: str) -> Structural:
    """Of a field, or of a value of a map."""
    found = structural.get("properties", {}).get(key) or structural.get("additionalProperties")
    return found if isinstance(found, Mapping) else {}


def _filled(structural: Structural, value: Any) -> Any:
    """Without nulls where none may be, and with defaults in the place of what is not there."""
    if isinstance(value, dict):
        for key in [key for key, one in value.items() if one is None]:
            if (inner := _inner(structural, key)) and not inner.get("nullable"):
                del value[key]
        for key, one in structural.get("properties", {}).items():
            if "default" in one and key not in value:
                value[key] = copy.deepcopy(one["default"])
        return {key: _filled(_inner(structural, key), one) for key, one in value.items()}
    if isinstance(value, list):
        return [_filled(structural.get("items", {}), one) for one in value]
    return value


def _children(
    structural: Structural, value: Any, path: str
) -> Iterator[tuple[Structural, Any, str]]:
    if isinstance(value, dict):
        for key, one in value.items():
            yield _inner(structural, key), one, f"{path}.{key}"
    elif isinstance(value, list):
        for place, one in enumerate(value):
            yield structural.get("items", {}), one, f"{path}[{place}]"


def _repeated(structural: Structural, value: Any, path: str) -> Iterator[str]:
    """Elements that a list has twice, by their keys or as they are."""
    kind = structural.get("x-kubernetes-list-type")
    if isinstance(value, list) and kind in ("map", "set"):
        keys = structural.get("x-kubernetes-list-map-keys", ())
        known = set()
        for place, one in enumerate(value):
            named = json.dumps([one.get(key) for key in keys] if kind == "map" else one)
            if named in known:
                yield f"{path}[{place}]: {named} is there twice"
            known.add(named)
    for inner, one, where in _children(structural, value, path):
        yield from _repeated(inner, one, where)


def _broken_rules(structural: Structural, value: Any, path: str) -> Iterator[str]:
    """Those of a change (`oldSelf`) have nothing to say of a new object."""
    for rule in structural.get("x-kubernetes-validations", ()):
        if "oldSelf" not in rule["rule"] and not _holds(rule["rule"], value, path):
            yield f"{path}: {rule.get('message', rule['rule'])}"
    for inner, one, where in _children(structural, value, path):
        yield from _broken_rules(inner, one, where)


def _holds(rule: str, value: Any, path: str) -> bool:
    context = cel.Context()
    context.add_function("split", str.split)  # of Kubernetes' own
    context.add_variable("self", value)
    try:
        found = cel.evaluate(rule, context)
    except Exception as error:
        raise ValueError(f"{path}: {rule!r} cannot be worked out here: {error}") from error
    return found is True
