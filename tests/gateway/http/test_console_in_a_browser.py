"""The console in headless Chromium, used with the keyboard and by what is read out."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from typing import Any

import pytest
from tests.browser import Page, browsing
from tests.gateway.resumable.test_resumable_fleet import engine_for_text, gateway_over
from tests.gateway.scripted import (
    Script,
    ScriptedDispatcher,
    make_model,
    serving,
    soon,
    tokens_of,
)
from tests.in_process_fleet import running_fleet
from tests.tools import needs

from baton.core.errors import Unavailable

pytestmark = [pytest.mark.wide, needs("chromium")]

CTRL = 2
HOSTILE = "<img src=x onerror=\"document.title='run'\"><script>document.title='run'</script>"
ENDED = "document.getElementById('progress').textContent.match(/^(Done|Stopped|Failed).*/)?.[0]"
ANSWERED = "[...document.querySelectorAll('#turns .text')].at(-1)?.textContent"
TURNS = "document.querySelectorAll('#turns li').length"
MADE = "document.querySelectorAll('body img, body script, [onerror]').length"
NAMED = {"button", "link", "textbox", "spinbutton", "combobox", "image", "table", "region"}


@dataclass
class HostileDispatcher(ScriptedDispatcher):
    """Whatever it tells of is markup."""

    async def status(self) -> dict[str, Any]:
        replica = {
            "replica": HOSTILE,
            "epoch": HOSTILE,
            "is_ready": False,
            "is_reachable": False,
            "trouble": HOSTILE,
            "num_blocks": 4,
        }
        return {"pools": {HOSTILE: [replica]}, "num_waiting": 0}


@asynccontextmanager
async def console(url: str) -> AsyncIterator[Page]:
    async with browsing() as browser:
        page = await browser.open(f"{url}/console")
        await page.look(width=1280, height=900)
        yield page


async def ask(page: Page, text: str, *, max_tokens: int = 24) -> None:
    await page.value(f"document.querySelector('[name=max_tokens]').value = {max_tokens}")
    await page.value("document.getElementById('prompt').focus()")
    await page.write(text)
    await page.press("Enter", modifiers=CTRL)


async def text(page: Page, selector: str) -> str:
    found: str = await page.value(f"document.querySelector({selector!r})?.textContent ?? ''")
    return found


async def test_an_answer_is_timed_its_way_drawn_and_its_replicas_are_shown() -> None:
    async with (
        running_fleet(prefill=2, make_engine=engine_for_text) as fleet,
        gateway_over(fleet, admin_port=0) as server,
        console(f"http://127.0.0.1:{server.http_port}") as page,
    ):
        with fleet.halting_at(12) as go_on:  # or all tokens might arrive at once, without a gap
            await ask(page, "the quick brown fox")
            await page.until(ANSWERED)
            go_on()
        ended = await page.until(ENDED)
        num_bars = await page.value("document.querySelectorAll('.gap').length")
        way = await text(page, ".lanes")
        await page.value("document.querySelector('.measured a').focus()")
        await page.press("Enter")
        await page.until("document.querySelectorAll('#explained tbody tr').length === 2")
        explained = await text(page, "#explained")
        await page.go(f"http://127.0.0.1:{server.admin_port}/console")
        await page.until("document.querySelectorAll('#pools tbody tr').length === 3")
        pools = await text(page, "#pools")
        looked_wrong = list(page.complaints)

    assert "24 tokens" in ended
    assert 0 < num_bars < 24
    assert "prefill-" in way and "KV over" in way and "decode-3" in way
    assert "(chosen)" in explained and "foreseen when it came" in explained
    assert "Its way" in explained
    assert "prefill-1" in pools and "of 256" in pools and "ready" in pools
    assert looked_wrong == []


async def test_what_models_and_replicas_write_stays_text() -> None:
    script = Script(tokens=tokens_of(HOSTILE))
    async with (
        serving(dispatcher=HostileDispatcher(script), admin_port=0) as gateway,
        console(gateway.url) as page,
    ):
        await ask(page, "hi", max_tokens=90)
        await page.until(ENDED)
        answer = await page.value("[...document.querySelectorAll('#turns .text')].at(-1).innerText")
        made = await page.value(MADE)
        title = await page.value("document.title")
        await page.go(f"{gateway.admin_url}/console")
        pools = await page.until("document.getElementById('pools').innerText")
        made += await page.value(MADE)
        title += await page.value("document.title")
        await page.value("location.hash = '#request/' + encodeURIComponent('<img src=x>/../a?b#c')")
        alert = await page.until("document.getElementById('find-alert').innerText")

    assert answer == HOSTILE
    assert HOSTILE in pools
    assert made == 0 and "run" not in title
    assert "<img src=x>" in alert


async def test_a_key_is_asked_for_used_and_left_nowhere() -> None:
    keys: dict[str, Any] = {"api_keys": {"s3cret"}, "operator_keys": {"r00t"}}
    async with serving(admin_port=0, **keys) as gateway, console(gateway.url) as page:
        await ask(page, "hello")
        refused = await page.until("document.getElementById('ask-alert').textContent")
        asked_again = await page.value("document.getElementById('prompt').value")
        focused = await page.value("document.activeElement.id")
        await page.press("Enter")
        await page.until("document.getElementById('key-dialog').open")
        await page.write("s3cret\n")
        await page.press("Enter")
        await page.until("document.getElementById('served').textContent.includes('org/tiny')")
        await page.value("document.getElementById('prompt').focus()")
        await page.press("Enter", modifiers=CTRL)
        ended = await page.until(f"{ENDED}?.startsWith('Done') && {ENDED}")
        left = await page.value(
            "[location.href, document.cookie, JSON.stringify({...localStorage, ...sessionStorage}),"
            " document.documentElement.outerHTML, document.getElementById('key').value].join()"
        )
        await page.value("location.hash = '#replicas'")
        elsewhere = await page.until("document.getElementById('replicas-alert').textContent")
        await page.go(f"{gateway.admin_url}/console")
        operators = await page.until("document.getElementById('replicas-alert').textContent")

    assert "send an API key" in refused
    assert asked_again == "hello" and focused == "open-key"
    assert "tokens" in ended
    assert "gateway.admin_port" in elsewhere and "give an operator's" in operators
    assert "s3cret" not in left


async def test_an_answer_is_stopped_and_one_that_fails_says_why() -> None:
    script = Script(tokens=tokens_of("one two three four five"), stalls_after=3)
    async with serving(script) as gateway, console(gateway.url) as page:
        await ask(page, "count")
        await page.until(ANSWERED)
        await page.value("document.getElementById('stop').click()")
        stopped = await page.until(ENDED)
        await soon(gateway.dispatcher.stopped)
        script.stalls_after, script.error, script.num_before = None, Unavailable("all are gone"), 2
        await ask(page, "count again")
        failed = await page.until("document.getElementById('ask-alert').textContent")
        script.error = None
        await ask(page, "once more")
        await page.until(f"{ENDED}?.startsWith('Done')")
        alerts = await page.value("document.getElementById('ask-alert').children.length")

    assert stopped.startswith("Stopped")
    assert failed == "all are gone"
    assert alerts == 0


async def test_an_adapter_is_asked_where_there_is_a_choice() -> None:
    model = replace(make_model(), adapters={"sql": "/models/sql"})
    async with serving(model=model) as gateway, console(gateway.url) as page:
        await page.until("!document.getElementById('model-label').hidden")
        await ask(page, "first")
        await page.until(f"{ENDED}?.startsWith('Done')")
        await page.value("document.getElementById('model').value = 'sql'")
        await ask(page, "then")
        await page.until(f"{ENDED}?.startsWith('Done') && {TURNS} === 4")

    assert [one.adapter for one in gateway.dispatcher.generations] == ["", "sql"]


async def test_everything_has_a_name_and_the_keyboard_reaches_it() -> None:
    async with serving() as gateway, console(gateway.url) as page:
        await page.value("document.querySelectorAll('details').forEach(one => one.open = true)")
        reached: list[str] = []
        while len(reached) < 20:
            await page.press("Tab")
            reached.append(
                await page.value(
                    "document.activeElement.getAttribute('href') || document.activeElement.id || "
                    "document.activeElement.name"
                )
            )
        await ask(page, "hello", max_tokens=4)
        await page.until(ENDED)
        told = await page.accessible()
        await page.look(width=320, height=640)
        overflow = await page.value("document.documentElement.scrollWidth - innerWidth")

    roles = {role for role, _ in told}
    assert {"banner", "navigation", "main", "heading", "status", "alert", "list"} <= roles
    assert [role for role, name in told if role in NAMED and not name] == []
    order = ["#main", "#playground", "#replicas", "open-key", "prompt", "send", "max_tokens"]
    assert [name for name in dict.fromkeys(reached) if name in order] == order
    assert overflow <= 0
