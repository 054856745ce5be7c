"""The salt in the hashes of KV blocks: a caller with another salt can neither find nor time these
prefixes.

    salt = keyed hash (deployment's secret) of tenant and the request's own cache_salt,
           in a domain of its own for each LoRA adapter

All gateways of a deployment need the same secret, or they cannot find each other's cached prefixes.
Requests without tenant, salt and adapter have none: they share their prefixes with all others like
them, and find them again in tiers that outlive the deployment. With an adapter alone the same holds
among the requests of that adapter, for KV computed under it is different KV: its hash needs no
secret.
"""

from __future__ import annotations

from hashlib import blake2b

SALT_BYTES = 32


class CacheSalts:
    def __init__(self, secret: str) -> None:
        self._key = blake2b(secret.encode()).digest()

    def salt(self, tenant: str, cache_salt: str, adapter: str = "") -> bytes:
        is_private = bool(tenant or cache_salt)
        if not (is_private or adapter):
            return b""
        name = tenant.encode()
        parts = len(name).to_bytes(4, "big") + name + cache_salt.encode()
        return blake2b(
            parts,
            key=self._key if is_private else b"",
            # Never part of what is hashed: no cache_salt can then imitate an adapter.
            person=blake2b(adapter.encode(), digest_size=blake2b.PERSON_SIZE).digest()
            if adapter
            else b"",
            digest_size=SALT_BYTES,
        ).digest()
