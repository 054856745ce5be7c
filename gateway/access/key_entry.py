"""One configured API key: the key itself, or better its SHA-256, which does not reveal the key.

    secret
    sha256:9f86d081884c7d65...  name=ci  expires=2027-03-31  scopes=inference  models=qwen3+small

Words after the hash, in any order: `name` for the log; `expires`, a date or time (UTC) from which
the key is unknown; `scopes`, a subset of the scopes that keys of this setting have; `models`, the
only ones it may use. Several values are joined by `+`, since commas separate keys. `baton keys`
draws a key and writes its line.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Set
from dataclasses import dataclass
from datetime import UTC, datetime

HASHED = "sha256:"
INFERENCE, ADMIN, METRICS = "inference", "admin", "metrics"
SCOPES = frozenset({INFERENCE, ADMIN, METRICS})
TENANT_SCOPES = frozenset({INFERENCE})
NAMED = ("file:", "env:")
"""Prefixes of a secret that is given by reference."""
_DIGEST = re.compile(r"[0-9a-f]{64}")
_NO_KEY = re.compile(
    rf".*\s.*|#.*|sha256.*|(name|expires|scopes?|models?)=.*|{'|'.join(sorted(SCOPES))}",
    re.IGNORECASE | re.DOTALL,
)
"""Texts that are not a key but a comment or a part of a split line, which anybody could guess."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyEntry:
    digest: bytes
    name: str
    expires_at: float | None = None
    """Seconds since 1970."""
    scopes: frozenset[str] = SCOPES
    models: frozenset[str] = frozenset()
    """Names of the models that it may use. Empty: all."""

    def is_valid(self, now: float) -> bool:
        return self.expires_at is None or now < self.expires_at


def digest_of(key: str) -> bytes:
    """SHA-256 of a key. Keys are long and random, so no slow password hash is needed."""
    return hashlib.sha256(key.encode()).digest()


def read_entry(line: str, scopes: Set[str]) -> KeyEntry:
    """`scopes`: those that a key of this setting may have. Raises ValueError, whose text never
    contains the key."""
    if not line.startswith(HASHED):
        if _NO_KEY.fullmatch(line):
            raise ValueError(
                "this is not a key: it has spaces, or looks like a comment or a part of a line of "
                "`baton keys` (was the line split at spaces or commas?); draw another key, or put "
                "the whole line into a file and give `file:/path`"
            )
        digest = digest_of(line)
        return KeyEntry(digest=digest, name=digest.hex()[:8], scopes=frozenset(scopes))
    text, *words = line.removeprefix(HASHED).split()
    if _DIGEST.fullmatch(text) is None:
        raise ValueError("a key's line needs 64 hexadecimal digits after `sha256:`")
    said = dict(word.partition("=")[::2] for word in words)
    if unknown := said.keys() - {"name", "expires", "scopes", "models"}:
        raise ValueError(
            f"a key's line has the unknown word {sorted(unknown)[0]!r}; use name, expires, scopes "
            "or models"
        )
    wanted = _several(said["scopes"]) if "scopes" in said else frozenset(scopes)
    if beyond := wanted - scopes:
        raise ValueError(
            f"a key's scope {sorted(beyond)[0]!r} is not for its place, which has "
            f"{', '.join(sorted(scopes))}"
        )
    return KeyEntry(
        digest=bytes.fromhex(text),
        name=said.get("name") or text[:8],
        expires_at=_time(said["expires"]) if "expires" in said else None,
        scopes=wanted,
        models=_models(said["models"]) if "models" in said else frozenset(),
    )


def _several(text: str) -> frozenset[str]:
    return frozenset(re.split("[+,]", text))


def _models(text: str) -> frozenset[str]:
    found = _several(text)
    if "" in found:
        raise ValueError(
            f"a key's models={text} has an empty name; write models=one+other, or leave it out to "
            "allow all models"
        )
    return found


def _time(text: str) -> float:
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise ValueError(
            f"a key's expires={text} is not a date; write 2027-03-31 or 2027-03-31T12:00:00Z"
        ) from None
    return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()
