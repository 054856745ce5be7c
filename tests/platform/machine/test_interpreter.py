"""What a serving process asks of its interpreter."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Iterator

import pytest

from baton.platform.machine.interpreter import (
    freeze_present_objects,
    freeze_startup_objects,
    without_garbage_collection,
)


@pytest.fixture(autouse=True)
def _as_before() -> Iterator[None]:
    yield
    gc.unfreeze()


def test_what_is_there_is_not_collected_any_more_and_what_comes_is() -> None:
    class Node:
        def __init__(self) -> None:
            self.me = self

    stays = Node()
    freeze_present_objects()
    assert all(found is not stays for found in gc.get_objects())
    gc.collect()

    Node()

    assert gc.collect() >= 1


def test_what_was_imported_while_the_collector_rested_is_not_looked_at_afterwards() -> None:
    with without_garbage_collection():
        assert not gc.isenabled()
        stays: list[list[int]] = [[]]

    assert gc.isenabled()
    assert all(found is not stays for found in gc.get_objects())


async def test_what_is_made_between_two_moments_is_not_looked_at_while_it_is_made_or_later() -> (
    None
):
    begun, over = asyncio.Event(), asyncio.Event()
    sparing = asyncio.create_task(freeze_startup_objects(begun.wait, over.wait))
    await asyncio.sleep(0)
    assert gc.isenabled()

    begun.set()
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert not gc.isenabled()
    stays: list[list[int]] = [[]]
    over.set()
    await sparing

    assert gc.isenabled()
    assert all(found is not stays for found in gc.get_objects())
