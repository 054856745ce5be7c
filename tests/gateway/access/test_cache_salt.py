"""Salts of tenants, of requests and of adapters."""

from __future__ import annotations

from itertools import product

from baton.gateway.access.cache_salt import CacheSalts

SALTS = CacheSalts("secret")
KNOWN = {
    ("", ""): "",
    ("acme", ""): "ae83f9570a70f88c504cf0abe04681834e87577eaaa89ad77bf99f9c58af173b",
    ("acme", "mine"): "7b2f04943c4307a25df92fd63ce6b19973d7e807607531b3b72bfd74b77907af",
}


def test_salts_without_an_adapter_are_those_that_kept_kv_is_named_by() -> None:
    assert {asked: SALTS.salt(*asked).hex() for asked in KNOWN} == KNOWN


def test_every_tenant_request_and_adapter_has_a_salt_of_its_own() -> None:
    asked = [*product(("", "a", "sql"), ("", "sql", "a"), ("", "sql", "a"))]

    assert len({SALTS.salt(*one) for one in asked}) == len(asked)


def test_the_kv_of_an_adapter_alone_is_found_again_by_a_deployment_with_another_secret() -> None:
    other = CacheSalts("of a later cluster")

    assert SALTS.salt("", "", "sql") == other.salt("", "", "sql") != b""
    assert SALTS.salt("acme", "", "sql") != other.salt("acme", "", "sql")
