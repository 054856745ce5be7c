"""The two clients are one, but for `await`."""

from __future__ import annotations

import inspect

from baton.client.async_client import AsyncBatonClient
from baton.client.async_stream import AsyncStream
from baton.client.client import BatonClient
from baton.client.stream import Stream


def test_both_clients_have_one_surface() -> None:
    for ours, theirs in ((BatonClient, AsyncBatonClient), (Stream, AsyncStream)):
        names = {name for name in vars(ours) if not name.startswith("_")} - {"close"}
        assert names == {name for name in vars(theirs) if not name.startswith("_")} - {"aclose"}
        for name in names:
            sync, asynchronous = getattr(ours, name), getattr(theirs, name)
            assert str(inspect.signature(sync)).replace("Stream[", "AsyncStream[") == str(
                inspect.signature(asynchronous)
            )
