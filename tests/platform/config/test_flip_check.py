"""What two pools must have in common for a replica to go from one to the other."""

from __future__ import annotations

from typing import Any

import pytest

from baton.core.errors import InvalidConfig
from baton.platform.config.deployment import DeploymentConfig, override
from baton.platform.config.flip import check_flip


def test_pools_that_are_alike_but_for_their_numbers_can_exchange_replicas() -> None:
    changes = {
        "prefill.replicas": 3,
        "prefill.resources.num_cpus": 4,
        "decode.max_open": 9,
        "prefill.parallel.tensor": 2,
        "decode.parallel.tensor": 2,
        "decode.speculation.method": "suffix",
    }

    check_flip(override(DeploymentConfig(), changes))


@pytest.mark.parametrize(
    ("changes", "setting"),
    [
        ({"prefill.parallel.tensor": 2}, "prefill.parallel.tensor is 2 and .*tensor is 1"),
        ({"decode.cache.kv_dtype": "int8"}, "prefill.cache.kv_dtype is auto and decode.*int8"),
        ({"decode.scheduler.max_running": 9}, "decode.scheduler.max_running is 9"),
        ({"decode.speculation.method": "mtp"}, "decode.speculation.method is mtp"),
        (
            {"prefill.parallel.data": 2, "decode.parallel.data": 2},
            "decode.parallel.data is 2: engines that run their passes together",
        ),
    ],
)
def test_what_differs_is_named_with_the_remedy(changes: dict[str, Any], setting: str) -> None:
    with pytest.raises(InvalidConfig, match=f"{setting}.*deploy"):
        check_flip(override(DeploymentConfig(), changes))
