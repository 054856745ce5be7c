from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.kv_transfer.tiers.blocks import LAYOUT

from baton.core.errors import InvalidConfig
from baton.kv_transfer.tiers.assemble import create_stack
from baton.kv_transfer.tiers.config import (
    DiskTierConfig,
    HostTierConfig,
    StoreTierConfig,
    TiersConfig,
)
from baton.platform.config.deployment import DeploymentConfig, override, parse_config


@pytest.mark.parametrize(
    ("setting", "value"),
    [
        ("tiers.host.gib", -1),
        ("tiers.disk.gib", -0.5),
        ("tiers.store.gib", -2),
        ("tiers.min_tokens", -1),
        ("tiers.deadline_s", -1),
        ("tiers.max_held_blocks", 0),
        ("tiers.max_queued_blocks", 0),
        ("tiers.disk.gibs", 1),
    ],
)
def test_a_wrong_setting_is_named(setting: str, value: float) -> None:
    with pytest.raises(InvalidConfig, match=setting.rpartition(".")[2]):
        override(DeploymentConfig(), {setting: value})


def test_tiers_without_prefix_caching_are_refused() -> None:
    raw: dict[str, Any] = {"tiers": {"host": {"gib": 1}}}
    assert parse_config(raw).tiers.is_on

    with pytest.raises(InvalidConfig, match=r"decode\.cache\.prefix_caching"):
        parse_config({**raw, "decode": {"cache": {"prefix_caching": False}}})


def test_nothing_is_kept_unless_it_is_asked_for() -> None:
    assert create_stack(DeploymentConfig().tiers, LAYOUT) is None


def test_each_tier_is_there_if_it_has_a_size_a_folder_or_a_url(tmp_path: Path) -> None:
    disk = DiskTierConfig(folder=str(tmp_path / "disk"))
    store = StoreTierConfig(url=str(tmp_path / "store"))
    some = create_stack(TiersConfig(disk=disk), LAYOUT)
    all_of_them = create_stack(
        TiersConfig(host=HostTierConfig(gib=0.5), disk=disk, store=store), LAYOUT
    )

    assert some is not None and some.tier_names == ("disk",)
    assert all_of_them is not None and all_of_them.tier_names == ("host", "disk", "store")
