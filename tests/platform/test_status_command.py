"""`baton status` says why a replica that does not answer does not."""

from __future__ import annotations

import pytest

from baton.platform.cli.status import _trouble
from baton.proto.cluster_token import REFUSAL


@pytest.mark.parametrize(
    ("trouble", "shown"),
    [(REFUSAL, "refused: cluster token"), ("Socket closed", "unreachable"), ("", "unreachable")],
)
def test_a_refused_token_is_told_from_a_dead_replica(trouble: str, shown: str) -> None:
    assert _trouble({"trouble": trouble}) == shown
