"""A model that only one node of a cluster has comes to another over Ray's object store."""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path

import pytest
from tests.cluster.node_script import node_script
from tests.file_server import file_server

pytestmark = [pytest.mark.cluster, pytest.mark.wide]


def test_a_node_takes_from_another_what_its_source_does_not_give_any_more(tmp_path: Path) -> None:
    weights = os.urandom(100_000_000)  # more than an object store holds
    files = {"config.json": b"{}", "tokenizer.json": b"{}", "model.safetensors": weights}
    digests = {name: f"sha256:{hashlib.sha256(data).hexdigest()}" for name, data in files.items()}
    with (
        file_server({f"m/{name}": data for name, data in files.items()}) as web,
        node_script("lending_nodes", f"{web.url}/m", tmp_path) as nodes,
    ):
        first = json.loads(nodes.answer())
        web.is_down = True
        second = json.loads(nodes.ask("go on"))

    assert first["digests"] == second["digests"] == digests
    assert {Path(found["folder"]).parts[-3] for found in (first, second)} == {"a", "b"}
