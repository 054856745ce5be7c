"""The salt in the hashes of KV blocks: a caller with another salt can neither find nor time these
prefixes.

    salt = keyed hash (deployment's secret) of tenant and the request's own cache_salt

All gateways of a deployment need the same secret, or they cannot find each other's cached prefixes.
Requests without tenant and salt have none: they share their prefixes with all others like them, and
find them again in tiers that outlive the deployment.
"""

from __future__ import annotations

from hashlib import blake2b

SALT_BYTES = 32


class CacheSalts:
    def __init__(self, secret: str) -> None:
        self._key = blake2b(secret.encode()).digest()

    def salt(self, tenant: str, cache_salt: str) -> bytes:
        if not (tenant or cache_salt):
            return b""
        name = tenant.encode()
        parts = len(name).to_bytes(4, "big") + name + cache_salt.encode()
        return blake2b(parts, key=self._key, digest_size=SALT_BYTES).digest()
