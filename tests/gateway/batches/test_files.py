"""Files that are uploaded for batches: bounded, whole, and gone in time."""

from __future__ import annotations

from pathlib import Path

import openai
import pytest
from tests.gateway.batches.batch_client import keeping, openai_of

from baton.core.clock import ManualClock
from baton.gateway.access.batch_config import BatchConfig
from baton.gateway.batches.files import Files, NewFile
from baton.gateway.storage.folder import StorageFolder
from baton.gateway.storage.storage import Storage


async def test_a_file_that_is_to_expire_early_is_gone_early(tmp_path: Path) -> None:
    clock = ManualClock(1e9)
    storage = Storage(StorageFolder(tmp_path, 10_000, unix_time=clock))
    new = NewFile(owner="", filename="in.jsonl", purpose="batch", ttl_s=1e6)
    async with Files(storage, clock).writing(new) as file:
        await file.write(b"{}")
        file.ttl_s = 3600.0
    clock.advance(3601)
    StorageFolder(tmp_path, 10_000, unix_time=clock).sweep()

    assert not [path for path in tmp_path.rglob("*") if path.is_file()]


async def test_uploads_are_bounded_and_whole(tmp_path: Path) -> None:
    settings = {"batches": BatchConfig(max_file_bytes=100_000, max_kept_bytes=150_000)}
    async with keeping(tmp_path, max_body_bytes=1000, **settings) as gateway:
        client = openai_of(gateway)
        with pytest.raises(openai.APIStatusError) as large:
            await client.files.create(file=("in.jsonl", bytes(100_001)), purpose="batch")
        with pytest.raises(openai.BadRequestError) as purpose:
            await client.files.create(file=("in.jsonl", b"{}"), purpose="vision")
        cut = b'--x\r\ncontent-disposition: form-data; name="file"; filename="a"\r\n\r\nhalf'
        headers = {"content-type": "multipart/form-data; boundary=x"}
        half = await gateway.http.post("/v1/files", content=cut, headers=headers)
        assert [one async for one in client.files.list()] == []
        for _ in range(2):
            kept = await client.files.create(file=("in.jsonl", bytes(100_000)), purpose="batch")
        with pytest.raises(openai.RateLimitError):
            await client.files.create(file=("in.jsonl", b"{}"), purpose="batch")
        content = await client.files.content(kept.id)

    assert large.value.status_code == 413
    assert purpose.value.param == "purpose"
    assert (half.status_code, "cut" in half.text) == (400, True)
    assert content.content == bytes(100_000)
