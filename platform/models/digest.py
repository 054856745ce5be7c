"""Digests of files, written as `kind:hex`.

sha256   of the bytes: large files of the hub, SHA256SUMS, digests computed by a node
git      as git names a blob: small files of the hub
"""

from __future__ import annotations

import hashlib
import re
from pathlib import Path
from typing import Protocol

BLOCK_BYTES = 1 << 20
_DIGEST = re.compile(r"sha256:[0-9a-f]{64}|git:[0-9a-f]{40}")


class Hasher(Protocol):
    def update(self, data: bytes, /) -> None: ...
    def hexdigest(self) -> str: ...


def is_digest(text: str) -> bool:
    return bool(_DIGEST.fullmatch(text))


def kind_of(digest: str) -> str:
    return digest.partition(":")[0] or "sha256"


def hasher(kind: str, num_bytes: int) -> Hasher:
    """`num_bytes`: of the whole file, which git puts first."""
    if kind == "git":
        return hashlib.sha1(b"blob %d\0" % num_bytes, usedforsecurity=False)
    return hashlib.sha256()


def digest_of(path: Path, kind: str = "sha256") -> str:
    found = hasher(kind, path.stat().st_size)
    with path.open("rb") as file:
        while block := file.read(BLOCK_BYTES):
            found.update(block)
    return f"{kind}:{found.hexdigest()}"
