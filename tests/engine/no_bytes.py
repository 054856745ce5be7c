"""Blocks that are only counted: for tests of who holds what."""

from __future__ import annotations

from collections.abc import Sequence

from baton.core.kv_layout import KvLayout


class NoBytes:
    def __init__(self, num_blocks: int, block_size: int, dtype: str = "float32") -> None:
        self.num_blocks = num_blocks
        self.layout = KvLayout(
            model_fingerprint=b"model",
            dtype=dtype,
            num_layers=1,
            num_kv_heads=1,
            head_dim=2,
            block_size=block_size,
        )

    def view(self, block: int, plane: int) -> memoryview:
        raise AssertionError("no KV is read here")

    def views(self, blocks: Sequence[int], planes: range) -> tuple[memoryview, ...]:
        raise AssertionError("no KV is read here")

    def write(self, block: int, plane: int, data: memoryview) -> None:
        raise AssertionError("no KV is written here")

    def clear(self, blocks: Sequence[int], plane: int) -> None:
        raise AssertionError("no KV is written here")

    def clear_tail(self, block: int, plane: int, num_used: int) -> None:
        raise AssertionError("no KV is written here")

    is_in_memory = False
    head_runs = ()
    device_rows = None

    def writable(self, block: int, plane: int) -> memoryview:
        raise AssertionError("no KV is written here")

    def writables(self, blocks: Sequence[int], planes: range) -> list[memoryview]:
        return [self.writable(block, plane) for plane in planes for block in blocks]

    def write_part(self, block: int, plane: int, offset: int, data: memoryview) -> None:
        raise AssertionError("no KV is written here")

    def scratch(self, num_bytes: int) -> memoryview:
        raise AssertionError("no KV is written here")

    def write_blocks(self, blocks: Sequence[int], planes: range, data: memoryview) -> None:
        raise AssertionError("no KV is written here")
