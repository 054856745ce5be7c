"""The pictures of docs/console.md, taken of a running server: its public port and its admin port.

python -m tests.gateway.http.console_pictures http://HOST:8000 http://HOST:8002 docs/images
"""

from __future__ import annotations

import asyncio
import sys
from io import BytesIO
from pathlib import Path

from PIL import Image
from tests.browser import Page, browsing

QUESTIONS = (
    "Write the function `add`.",
    "Write the function `copy_tree`. It copies a directory tree from source to target, which must "
    "not exist yet. If `ignore` is given, it is called with every directory and the names in it, "
    "and returns the names that are not to be copied. Files keep their times and their modes; "
    "links are copied as links. It returns how many files were copied, and raises what the "
    "operating system raises.",
)
WIDTH = 1200


async def main(url: str, admin_url: str, folder: Path) -> None:
    async with browsing() as browser:
        page = await browser.open(f"{url}/console")
        await page.value("document.querySelector('[name=max_tokens]').value = 96")
        for question in QUESTIONS:
            await page.value("document.getElementById('prompt').focus()")
            await page.write(question)
            await page.press("Enter", modifiers=2)
            await page.until("document.getElementById('progress').textContent.startsWith('Done')")
        await take(page, folder / "console-playground.png", height=1000)
        await take(page, folder / "console-dark.png", height=1000, is_dark=True)
        await page.value("document.querySelector('.measured a').click()")
        await page.until("document.querySelectorAll('#explained tbody tr').length")
        await take(page, folder / "console-request.png", height=1160)
        await page.go(f"{admin_url}/console")
        await page.until(
            "document.querySelector('.occupied')?.getAttribute('points').split(' ').length > 2"
        )
        await take(page, folder / "console-replicas.png", height=560)


async def take(page: Page, path: Path, *, height: int, is_dark: bool = False) -> None:
    await page.look(width=WIDTH, height=height, is_dark=is_dark)
    await page.value("document.activeElement.blur(), scrollTo(0, 0)")
    picture = Image.open(BytesIO(await page.picture())).convert("RGB")
    # 256 colours are a third of the bytes; by octree, as the median cut takes rare ones for others
    picture.quantize(256, method=Image.Quantize.FASTOCTREE).save(path, optimize=True)
    print(f"{path}: {path.stat().st_size / 1e3:.0f} kB")


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], sys.argv[2], Path(sys.argv[3])))
