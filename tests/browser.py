"""A headless Chromium, driven over its DevTools protocol.

    async with browsing() as browser:
        page = await browser.open(url)
        await page.until("document.title === 'Ready'")

What a page throws or a policy forbids is collected: `page.complaints`.
"""

from __future__ import annotations

import asyncio
import base64
import itertools
import json
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import aiohttp
from tests.tools import program

LIMIT_S = 60.0
POLL_S = 0.05


class Browser:
    def __init__(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        self._socket = socket
        self._numbers = itertools.count(1)
        self._waiting: dict[int, asyncio.Future[dict[str, Any]]] = {}
        self._page_by_session: dict[str, Page] = {}

    async def open(self, url: str) -> Page:
        target = await self.ask("Target.createTarget", {"url": "about:blank"})
        attach = {"targetId": target["targetId"], "flatten": True}
        session = (await self.ask("Target.attachToTarget", attach))["sessionId"]
        page = self._page_by_session[session] = Page(self, session)
        for domain in ("Runtime", "Log", "Page", "Accessibility"):
            await page.ask(f"{domain}.enable")
        await page.go(url)
        return page

    async def ask(self, method: str, params: dict[str, Any], session: str = "") -> dict[str, Any]:
        number = next(self._numbers)
        answer = self._waiting[number] = asyncio.get_running_loop().create_future()
        message = {"id": number, "method": method, "params": params}
        await self._socket.send_json(message | ({"sessionId": session} if session else {}))
        async with asyncio.timeout(LIMIT_S):
            result: dict[str, Any] = await answer
        return result

    async def listen(self) -> None:
        async for raw in self._socket:
            message = json.loads(raw.data)
            answer = self._waiting.pop(message.get("id"), None)
            if answer is None:
                page = self._page_by_session.get(message.get("sessionId", ""))
                if page is not None:
                    page.hear(message["method"], message["params"])
            elif "error" in message:
                answer.set_exception(RuntimeError(message["error"]["message"]))
            else:
                answer.set_result(message["result"])


class Page:
    def __init__(self, browser: Browser, session: str) -> None:
        self._browser = browser
        self._session = session
        self.complaints: list[str] = []

    def hear(self, method: str, params: dict[str, Any]) -> None:
        if method == "Runtime.exceptionThrown":
            self.complaints.append(json.dumps(params["exceptionDetails"]))
        elif method == "Log.entryAdded" and params["entry"]["level"] == "error":
            self.complaints.append(f"{params['entry']['text']} {params['entry'].get('url', '')}")

    async def ask(self, method: str, **params: Any) -> dict[str, Any]:
        return await self._browser.ask(method, params, self._session)

    async def go(self, url: str) -> None:
        await self.ask("Page.navigate", url=url)
        await self.until("document.readyState === 'complete' && location.href !== 'about:blank'")

    async def value(self, expression: str) -> Any:
        """Of a JavaScript expression; promises are awaited."""
        answer = await self.ask(
            "Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True
        )
        assert "exceptionDetails" not in answer, answer["exceptionDetails"]
        return answer["result"].get("value")

    async def until(self, expression: str) -> Any:
        """The first value that is true."""
        async with asyncio.timeout(LIMIT_S):
            while True:
                with suppress(RuntimeError):  # its context is gone: the page is being changed
                    if value := await self.value(expression):
                        return value
                await asyncio.sleep(POLL_S)

    async def press(self, key: str, *, modifiers: int = 0) -> None:
        """As on a keyboard. Modifiers: 2 is Ctrl, 8 is Shift."""
        code = {"Enter": 13, "Tab": 9, "Escape": 27}[key]
        text = {"text": "\r"} if key == "Enter" else {}
        event = {"key": key, "code": key, "windowsVirtualKeyCode": code, "modifiers": modifiers}
        await self.ask("Input.dispatchKeyEvent", type="keyDown", **event, **text)
        await self.ask("Input.dispatchKeyEvent", type="keyUp", **event)

    async def write(self, text: str) -> None:
        """Into what has the focus."""
        await self.ask("Input.insertText", text=text)

    async def look(self, *, width: int, height: int, is_dark: bool = False) -> None:
        """As a screen of this size, in pixels, with this colour scheme."""
        size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
        scheme = {"name": "prefers-color-scheme", "value": "dark" if is_dark else "light"}
        await self.ask("Emulation.setDeviceMetricsOverride", **size)
        await self.ask("Emulation.setEmulatedMedia", features=[scheme])

    async def picture(self) -> bytes:
        """A PNG."""
        answer = await self.ask("Page.captureScreenshot", format="png")
        return base64.b64decode(answer["data"])

    async def accessible(self) -> list[tuple[str, str]]:
        """What a screen reader is told: role and name of each node that is not ignored."""
        nodes = (await self.ask("Accessibility.getFullAXTree"))["nodes"]
        return [
            (node["role"]["value"], node.get("name", {}).get("value", ""))
            for node in nodes
            if not node["ignored"]
        ]


@asynccontextmanager
async def browsing() -> AsyncIterator[Browser]:
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        process = await asyncio.create_subprocess_exec(
            program("chromium"), "--headless=new", "--no-sandbox", "--disable-gpu",
            "--disable-dev-shm-usage", "--no-first-run",
            "--disable-background-networking", "--disable-component-update",
            "--remote-debugging-port=0", f"--user-data-dir={folder}", "about:blank",
            stdout=asyncio.subprocess.DEVNULL, stderr=asyncio.subprocess.DEVNULL,
        )  # fmt: skip
        try:
            url = await _address(Path(folder) / "DevToolsActivePort")
            async with (
                aiohttp.ClientSession() as http,
                http.ws_connect(url, max_msg_size=0) as socket,
            ):
                browser = Browser(socket)
                listening = asyncio.create_task(browser.listen())
                try:
                    yield browser
                finally:
                    listening.cancel()
        finally:
            with suppress(ProcessLookupError):
                process.terminate()
            await process.wait()


async def _address(told: Path) -> str:
    """Chromium writes its port and its path once it listens."""
    async with asyncio.timeout(LIMIT_S):
        while not told.exists() or told.read_text().count("\n") < 1:
            await asyncio.sleep(POLL_S)
    port, path = told.read_text().split("\n")[:2]
    return f"ws://127.0.0.1:{port}{path}"
