"""A model that only one node of a cluster has comes to another over Ray's object store."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from tests.file_server import file_server

NODES = Path(__file__).with_name("lending_nodes.py")
pytestmark = [pytest.mark.cluster, pytest.mark.wide]


def test_a_node_takes_from_another_what_its_source_does_not_give_any_more(tmp_path: Path) -> None:
    weights = os.urandom(100_000_000)  # more than an object store holds
    files = {"config.json": b"{}", "tokenizer.json": b"{}", "model.safetensors": weights}
    digests = {name: f"sha256:{hashlib.sha256(data).hexdigest()}" for name, data in files.items()}
    with file_server({f"m/{name}": data for name, data in files.items()}) as web:
        process = subprocess.Popen(
            [sys.executable, NODES, f"{web.url}/m", tmp_path],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert process.stdin is not None and process.stdout is not None
        lines = (line for line in process.stdout if line.startswith("{"))  # Ray tells there, too
        first = json.loads(next(lines))
        web.is_down = True
        print(file=process.stdin, flush=True)
        second = json.loads(next(lines))
        print(file=process.stdin, flush=True)
        assert process.wait(180) == 0

    assert first["digests"] == second["digests"] == digests
    assert {Path(found["folder"]).parts[-3] for found in (first, second)} == {"a", "b"}
