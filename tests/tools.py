"""Programs that tests run and that no package of ours brings.

`make tools` puts them below ~/.cache/baton; one that is on PATH is as good. A test that wants one
which is not there is skipped, but not in CI (CI=true): there it fails.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

TOOLS = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "baton" / "tools"
BIN = TOOLS / "bin"
NAMES = {
    "prometheus": ("prometheus",),
    "promtool": ("promtool",),
    "checkov": ("checkov",),
    "chromium": ("chromium", "chromium-browser", "google-chrome"),
}
"""What each may be called."""


def find(tool: str) -> str | None:
    path = f"{BIN}{os.pathsep}{os.environ.get('PATH', os.defpath)}"
    return next(filter(None, (shutil.which(name, path=path) for name in NAMES[tool])), None)


def program(tool: str) -> str:
    """Its path. Raises FileNotFoundError where it is not."""
    found = find(tool)
    if found is None:
        raise FileNotFoundError(f"no {tool} below {TOOLS} or on PATH: run `make tools`")
    return found


def needs(tool: str) -> pytest.MarkDecorator:
    is_missing = find(tool) is None and os.environ.get("CI") != "true"
    return pytest.mark.skipif(is_missing, reason=f"no {tool}: make tools")
