"""The chart's own test, run as its pod runs it, on a gateway."""

from __future__ import annotations

import asyncio
import sys
from typing import Any

import pytest
from tests.gateway.scripted import MODEL, serving
from tests.helm.chart import Manifest, render

URL = "http://rel-baton.prod:80"
KEYED = {"config": {"gateway": {"api_keys": ["file:/etc/baton/keys/a"]}}}
WITH_KEY = KEYED | {"test": {"apiKey": {"existingSecret": "key-of-tests", "key": "api"}}}


def container(values: dict[str, Any]) -> Manifest:
    [found] = render(values).one("Pod")["spec"]["containers"]
    assert isinstance(found, dict)
    return found


async def run(pod: Manifest, url: str, key: str = "") -> tuple[int | None, str]:
    """With the key that the Secret has, if the pod names one."""
    program, *options = pod["command"]
    assert program == "python"
    arguments = [url if one == URL else one for one in pod["args"]]
    assert url in arguments
    is_given = [one["valueFrom"]["secretKeyRef"] for one in pod.get("env", ())] == [
        {"name": "key-of-tests", "key": "api"}
    ]
    ran = await asyncio.create_subprocess_exec(
        sys.executable, *options, *arguments,
        stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT,
        env={"BATON_API_KEY": key} if is_given else {},
    )  # fmt: skip
    told, _ = await ran.communicate()
    return ran.returncode, told.decode()


async def test_a_gateway_without_keys_answers_a_request() -> None:
    async with serving() as gateway:
        status, told = await run(container({}), str(gateway.http.base_url))

    assert status == 0, told
    assert f"models: {MODEL}" in told and "answered: " in told
    assert len(gateway.dispatcher.generations) == 1


@pytest.mark.parametrize(
    ("values", "key", "status", "word"),
    [
        (KEYED, "", 0, "name a Secret with one in test.apiKey"),
        (WITH_KEY, "key\n", 0, "answered: "),
        (WITH_KEY, "other", 1, "401"),
    ],
)
async def test_a_gateway_with_keys_is_asked_with_one_from_a_secret(
    values: dict[str, Any], key: str, status: int, word: str
) -> None:
    async with serving(api_keys=frozenset({"key"})) as gateway:
        ended, told = await run(container(values), str(gateway.http.base_url), key)

    assert ended == status, told
    assert word in told


async def test_a_gateway_that_takes_no_requests_fails_it() -> None:
    async with serving() as gateway:
        gateway.dispatcher.ready = False
        status, told = await run(container({}), str(gateway.http.base_url))

    assert status == 1
    assert "/ready: 503" in told
