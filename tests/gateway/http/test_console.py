"""The console as it is served, and `/`: what may run there, who may read it, and that it is whole.

How it looks to who uses it is in `test_console_in_a_browser.py`.
"""

from __future__ import annotations

import json
import re
import shutil
import socket
import subprocess
from pathlib import Path
from urllib.parse import urljoin

import pytest
from tests.gateway.scripted import serving

from baton.gateway.access.config import GatewayConfig
from baton.gateway.http.pages.console_page import FOLDER
from baton.gateway.requests.readiness import NOBODY

MEDIA = {".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml"}
PART_OF_PAGE = re.compile(r'(?:src|href)="(console/[^"]+)"')
PART_OF_MODULE = re.compile(r'from "(\./[^"]+)"')
MARKUP = re.compile(
    r"innerHTML|outerHTML|insertAdjacentHTML|srcdoc|document\.write|DOMParser|\beval\b|Function\("
)
KEPT = re.compile(r"localStorage|sessionStorage|indexedDB|document\.cookie")


async def test_the_console_is_served_whole_and_nothing_but_its_own_scripts_may_run() -> None:
    async with serving() as gateway:
        page = await gateway.http.get("/console")
        waiting = PART_OF_PAGE.findall(page.text)
        parts = {}
        while waiting:
            path = waiting.pop()
            if path not in parts:
                part = parts[path] = await gateway.http.get(f"/{path}")
                if path.endswith(".js"):
                    waiting += [urljoin(path, name) for name in PART_OF_MODULE.findall(part.text)]
        known = {"if-none-match": parts["console/main.js"].headers["etag"]}
        again = await gateway.http.get("/console/main.js", headers=known)

    assert {Path(path).name for path in parts} == {
        path.name for path in FOLDER.iterdir() if path.name != "index.html"
    }
    assert page.headers["content-type"].startswith("text/html")
    for path, part in parts.items():
        assert part.status_code == 200
        assert part.headers["content-type"].startswith(MEDIA[Path(path).suffix])
        assert part.headers["x-content-type-options"] == "nosniff"
    policy = page.headers["content-security-policy"].split("; ")
    assert {"default-src 'none'", "script-src 'self'", "connect-src 'self'"} <= set(policy)
    assert "frame-ancestors 'none'" in policy and "require-trusted-types-for 'script'" in policy
    assert "unsafe" not in page.headers["content-security-policy"]
    texts = [page.text, *(part.text for part in parts.values())]
    addresses = {at for text in texts for at in re.findall(r"https?://[^\s\"'>]+", text)}
    assert addresses == {"http://www.w3.org/2000/svg"}  # a name, which nobody fetches
    assert not re.search(r"<script(?![^>]* src=)|<style| style=| on\w+=", page.text)
    assert again.status_code == 304


def test_no_text_becomes_markup_and_no_key_is_kept() -> None:
    source = "".join(path.read_text() for path in FOLDER.glob("*.js"))

    assert not MARKUP.findall(source)
    assert not KEPT.findall(source)


async def test_with_keys_the_pages_stay_open_and_what_they_ask_for_does_not() -> None:
    async with serving(api_keys=frozenset({"secret"})) as gateway:
        opened = [(await gateway.http.get(path)).status_code for path in ("/console", "/")]
        closed = (await gateway.http.get("/v1/models")).status_code
        wandering = [
            (await gateway.http.get(f"/console/{name}")).status_code
            for name in (
                "..%2fapp.py",
                "%2e%2e/app.py",
                "__init__.py",
                "",
                "main.js/",
                "icon.svg%00",
            )
        ]

    assert opened == [200, 200]
    assert closed == 401
    assert set(wandering) == {404}


async def test_the_console_is_turned_off_and_on_while_it_is_served() -> None:
    async def seen() -> tuple[int, int, bool]:
        page, part = await gateway.http.get("/console"), await gateway.http.get("/console/main.js")
        links = (await gateway.http.get("/")).json()["links"]
        return page.status_code, part.status_code, "console" in links

    async with serving(console=False) as gateway:
        off = await seen()
        gateway.server.reconfigure(GatewayConfig(), NOBODY)
        on = await seen()

    assert off == (404, 404, False)
    assert on == (200, 200, True)


async def test_the_root_tells_browsers_and_programs_where_to_go_on() -> None:
    async with serving(admin_port=0) as gateway:
        page = await gateway.http.get("/", headers={"accept": "text/html,*/*;q=0.8"})
        told = await gateway.http.get("/")
        version = (await gateway.http.get("/version")).json()
        operators = (await gateway.http.get(f"{gateway.admin_url}/")).json()["links"]
    linked = set(told.json()["links"].values())

    assert page.headers["content-type"].startswith("text/html")
    assert "default-src 'none'" in page.headers["content-security-policy"]
    assert {f"/{path}" for path in re.findall(r'href="([^"]+)"', page.text)} == linked
    assert told.headers["vary"] == page.headers["vary"] == "accept"
    assert version == {"version": told.json()["version"]}
    assert {"/docs", "/console", "/v1/models"} <= linked
    assert {"console", "status", "metrics"} <= operators.keys() and "models" not in operators


async def test_the_root_says_at_which_port_metrics_are() -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    async with serving(admin_port=port) as gateway:
        page = (await gateway.http.get("/", headers={"accept": "text/html"})).text
        told = (await gateway.http.get("/")).json()
        operators = (await gateway.http.get(f"{gateway.admin_url}/")).json()

    assert "/metrics" in page and f"port {port}" in page and told["admin_port"] == port
    assert operators["links"]["metrics"] == "/metrics" and operators.get("admin_port") is None


def test_git_ignores_none_of_its_files_so_the_wheel_has_them_all() -> None:
    """Which is what decides of what is neither Python nor named in pyproject.toml."""
    command = ["git", "check-ignore", *map(str, FOLDER.iterdir())]
    if shutil.which("git") is None:
        pytest.skip("git is not on PATH")

    run = subprocess.run(command, cwd=FOLDER, capture_output=True, text=True)

    assert run.returncode != 0 and run.stdout == ""


def test_a_stream_is_read_alike_wherever_the_network_cuts_it(tmp_path: Path) -> None:
    script = """
        import { EventReader } from "./events.js";
        import { quantile, thinned, Timings } from "./timings.js";
        const text = 'data: {"a": 1}\\n\\n: nothing\\n\\ndata: x\\r\\ndata: y\\r\\n\\r\\ndata: [DO';
        const whole = [];
        for (let cut = 1; cut < text.length; cut += 1) {
          const reader = new EventReader();
          const pieces = [text.slice(0, cut), text.slice(cut)];
          whole.push(JSON.stringify(pieces.flatMap((piece) => reader.read(piece))));
        }
        const timings = new Timings(100);
        const came = [[130, 1], [140, 2], [140.5, 3], [190, null]];
        came.forEach(([at, tokens]) => timings.arrive(at, tokens));
        console.log(JSON.stringify({
          cuts: [...new Set(whole)],
          timings: [timings.firstTokenMs, timings.numTokens, timings.gaps, timings.tokensPerSecond],
          quantiles: [quantile([], 0.5), quantile([3, 1, 2], 0.5), quantile([3, 1, 2], 0.95)],
          thinned: thinned([1, 9, 2, 3, 4], 2),
        }));
    """
    node = shutil.which("node")
    if node is None:
        pytest.skip("node is not on PATH")
    for path in FOLDER.glob("*.js"):
        (tmp_path / path.name).write_bytes(path.read_bytes())
    (tmp_path / "package.json").write_text('{"type": "module"}')
    (tmp_path / "try.js").write_text(script)

    run = subprocess.run(
        [node, "try.js"], cwd=tmp_path, capture_output=True, text=True, check=False
    )

    assert run.returncode == 0, run.stderr
    told = json.loads(run.stdout)
    assert [json.loads(cut) for cut in told["cuts"]] == [['{"a": 1}', "x\ny"]]
    assert told["timings"] == [30, 4, [10, 50], 50]
    assert told["quantiles"] == [None, 2, 3]
    assert told["thinned"] == [9, 4]
