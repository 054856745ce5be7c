from __future__ import annotations

from dataclasses import replace

import pytest
from tests.kv_transfer.tiers.blocks import (
    FORMAT,
    LAYOUT,
    OTHER_FORMAT,
    is_record_of,
    name_of,
    record_of,
)

from baton.core.errors import CorruptPiece
from baton.kv_transfer.layouts.integrity import unit_checksums
from baton.kv_transfer.tiers.media import record as record_module
from baton.kv_transfer.tiers.media.record import (
    RecordFormat,
    block_name,
    is_record_name,
    layout_digest,
)


def encoded(number: int, format_: RecordFormat = FORMAT) -> bytearray:
    return bytearray(b"".join(format_.encode(record_of(number, format_))))


def test_a_record_is_read_back_as_it_was_written() -> None:
    record = FORMAT.decode(encoded(7), name_of(7))

    assert is_record_of(record, 7)
    assert record.checksums == unit_checksums(record.payload, LAYOUT.unit_bytes)
    assert len(encoded(7)) == FORMAT.file_bytes


def test_every_flipped_bit_is_noticed() -> None:
    whole = encoded(7)

    for position in range(len(whole)):
        broken = bytearray(whole)
        broken[position] ^= 1 << position % 8
        with pytest.raises(CorruptPiece):
            FORMAT.decode(broken, name_of(7))


@pytest.mark.parametrize("change", [-1, 1, -len(encoded(7)), -LAYOUT.unit_bytes])
def test_a_file_of_another_length_is_refused(change: int) -> None:
    whole = encoded(7)
    torn = whole[:change] if change < 0 else whole + b"x"

    with pytest.raises(CorruptPiece, match="bytes where"):
        FORMAT.decode(torn, name_of(7))


def test_a_whole_record_of_another_block_is_refused() -> None:
    with pytest.raises(CorruptPiece, match="another format, layout or block"):
        FORMAT.decode(encoded(8), name_of(7))


def test_a_whole_record_of_another_layout_is_refused() -> None:
    same_size = RecordFormat(replace(LAYOUT, model_fingerprint=b"other"))

    with pytest.raises(CorruptPiece, match="another format, layout or block"):
        FORMAT.decode(encoded(7, same_size), name_of(7))


def test_a_record_of_a_newer_version_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(record_module, "VERSION", record_module.VERSION + 1)
    newer = encoded(7)
    monkeypatch.undo()

    with pytest.raises(CorruptPiece, match="another format"):
        FORMAT.decode(newer, name_of(7))


def test_every_field_of_a_layout_makes_another_digest() -> None:
    others = [
        replace(LAYOUT, model_fingerprint=b"other"),
        replace(LAYOUT, dtype="bfloat16"),
        replace(LAYOUT, num_layers=3),
        replace(LAYOUT, num_kv_heads=4),
        replace(LAYOUT, head_dim=8),
        replace(LAYOUT, block_size=8),
        replace(LAYOUT, first_kv_head=2),
    ]

    digests = {layout_digest(layout) for layout in (LAYOUT, *others)}

    assert len(digests) == len(others) + 1
    assert layout_digest(replace(LAYOUT)) == layout_digest(LAYOUT)


def test_a_file_name_says_which_block_and_layout_it_is_about() -> None:
    file_name = FORMAT.file_name(name_of(7))

    assert is_record_name(file_name.split("/")[1])
    assert block_name(file_name) == name_of(7)
    assert FORMAT.is_ours(file_name) and not OTHER_FORMAT.is_ours(file_name)
    assert not is_record_name("notes.txt") and not is_record_name("../../etc/passwd")
