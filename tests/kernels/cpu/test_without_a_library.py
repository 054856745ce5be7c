"""Kernels can be imported where nothing is compiled, nor ever will be: torch computes there."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from typing import NoReturn

import pytest

import baton.kernels

FOLDER = Path(baton.kernels.__path__[0])
MODULES = sorted(FOLDER.rglob("*_cpu.py"))


def test_no_operator_is_asked_for_on_import(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse() -> NoReturn:
        raise RuntimeError("there are no compiled operators here")

    monkeypatch.setattr("baton.kernels.cpu.operators._library", refuse)
    assert len(MODULES) > 20
    for number, file in enumerate(MODULES):
        name = f"imported_anew_{number}"
        spec = importlib.util.spec_from_file_location(name, file)
        assert spec is not None and spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        monkeypatch.setitem(sys.modules, name, module)  # dataclasses look their module up
        spec.loader.exec_module(module)
