"""Puts the compiled operators of the folder BATON_PREBUILT into a wheel, and names where it runs.

`make wheel` sets it. Without it a wheel has none and runs anywhere: whoever installs it compiles
them at first use, or lets torch compute. An editable install never has any.
"""

from __future__ import annotations

import os
import runpy
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

INSIDE = "baton/kernels/cpu/prebuilt"


class Prebuilt(BuildHookInterface):  # type: ignore[type-arg]
    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        folder = os.environ.get("BATON_PREBUILT")
        if not folder or version == "editable":
            return
        libraries = sorted(Path(folder).glob("*.so"))
        if not libraries:
            raise FileNotFoundError(f"no *.so in BATON_PREBUILT={folder}: `make wheel` makes them")
        for library in libraries:
            build_data["force_include"][str(library)] = f"{INSIDE}/{library.name}"
        wheel_tag = runpy.run_path(f"{self.root}/src/baton/kernels/cpu/wheel_tag.py")
        build_data["pure_python"] = False
        build_data["tag"] = f"py3-none-{wheel_tag['platform_tag'](libraries)}"
