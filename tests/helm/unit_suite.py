"""Suites of helm-unittest's format, run on the real Helm: what of the format the chart's tests use.

suite, templates, tests: it, set, values, release, capabilities, documentSelector, asserts
asserts: equal, notEqual, contains, exists, notExists, matchRegex, lengthEqual, isKind,
         hasDocuments, failedTemplate
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.helm.chart import CHART, KUBE, Manifest, Release, RenderFailed, read_yaml, render

Assertion = Mapping[str, Any]

_STEP = re.compile(r'\["(?P<quoted>[^"]+)"\]|\[(?P<place>\d+)\]|\.?(?P<key>[^.\[\]]+)')
_NOTHING = object()


@dataclass(frozen=True, slots=True)
class Case:
    suite: str
    templates: Sequence[str]
    text: Mapping[str, Any]

    def __str__(self) -> str:
        return f"{self.suite}: {self.text['it']}"


def read_suite(path: Path) -> Iterator[Case]:
    suite = read_yaml(path)
    for text in suite["tests"]:
        yield Case(suite["suite"], suite["templates"], text)


def run(case: Case) -> None:
    """Raises AssertionError."""
    asserts = case.text["asserts"]
    try:
        rendered = render(_values(case), _release(case))
    except RenderFailed as failure:
        for assertion in asserts:
            assert "failedTemplate" in assertion, f"{case}: {failure}"
            assert assertion["failedTemplate"]["errorMessage"] in str(failure), f"{case}: {failure}"
        return
    documents = [one for name in case.templates for one in rendered.by_template[name]]
    for assertion in asserts:
        [(kind, wanted)] = ((k, v) for k, v in assertion.items() if k != "documentSelector")
        chosen = _select(documents, assertion.get("documentSelector"))
        if kind == "hasDocuments":
            assert len(chosen) == wanted["count"], f"{case}: {[one['kind'] for one in chosen]}"
            continue
        assert chosen, f"{case}: nothing is rendered"
        for document in chosen:
            _ASSERTS[kind](document, wanted)


def _values(case: Case) -> dict[str, Any]:
    """Files first, then what is set, by keys with dots or as a tree."""
    values: dict[str, Any] = {}
    for file in case.text.get("values", ()):
        values |= read_yaml(CHART / "tests" / file)
    for path, value in case.text.get("set", {}).items():
        *parents, last = _steps(path)
        node = values
        for parent in parents:
            node = node.setdefault(parent, {})
        node[last] = value
    return values


def _release(case: Case) -> Release:
    release = case.text.get("release", {})
    known = case.text.get("capabilities", {})
    return Release(
        name=release.get("name", "rel"),
        is_upgrade=release.get("upgrade", False),
        kube=known.get("majorVersion", KUBE),
        api_versions=known.get("apiVersions", ()),
    )


def _select(documents: Sequence[Manifest], selector: Mapping[str, Any] | None) -> list[Manifest]:
    if selector is None:
        return list(documents)
    return [one for one in documents if _at(one, selector["path"]) == selector["value"]]


def _steps(path: str) -> list[Any]:
    return [
        int(step["place"]) if step["place"] else step["quoted"] or step["key"]
        for step in _STEP.finditer(path)
    ]


def _at(document: Any, path: str) -> Any:
    for step in _steps(path):
        try:
            document = document[step]
        except (KeyError, IndexError, TypeError):
            return _NOTHING
    return document


def _equal(document: Manifest, wanted: Assertion) -> None:
    assert _at(document, wanted["path"]) == wanted["value"], wanted["path"]


def _not_equal(document: Manifest, wanted: Assertion) -> None:
    assert _at(document, wanted["path"]) != wanted["value"], wanted["path"]


def _contains(document: Manifest, wanted: Assertion) -> None:
    assert wanted["content"] in _at(document, wanted["path"]), wanted["path"]


def _exists(document: Manifest, wanted: Assertion) -> None:
    assert _at(document, wanted["path"]) is not _NOTHING, wanted["path"]


def _not_exists(document: Manifest, wanted: Assertion) -> None:
    assert _at(document, wanted["path"]) is _NOTHING, wanted["path"]


def _matches(document: Manifest, wanted: Assertion) -> None:
    assert re.search(wanted["pattern"], _at(document, wanted["path"])), wanted["path"]


def _length(document: Manifest, wanted: Assertion) -> None:
    assert len(_at(document, wanted["path"])) == wanted["count"], wanted["path"]


def _is_kind(document: Manifest, wanted: Assertion) -> None:
    assert document["kind"] == wanted["of"]


def _failed(document: Manifest, wanted: Assertion) -> None:
    raise AssertionError(f"rendered, but should fail with: {wanted['errorMessage']}")


_ASSERTS: Mapping[str, Callable[[Manifest, Assertion], None]] = {
    "equal": _equal,
    "notEqual": _not_equal,
    "contains": _contains,
    "exists": _exists,
    "notExists": _not_exists,
    "matchRegex": _matches,
    "lengthEqual": _length,
    "isKind": _is_kind,
    "failedTemplate": _failed,
}
