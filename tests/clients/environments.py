"""Each client in an environment of its own, made once for what it requires."""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "baton" / "clients"
INSTALL_LIMIT_S = 900
READY = ".ready"
"""Written last: an environment without it was given up half-way, and is made anew."""


class CannotInstall(Exception):
    """A registry or its client refuses."""


def clients() -> list[str]:
    return sorted(program.parent.name for program in HERE.glob("*/program.*"))


def versions(client: str) -> dict[str, str]:
    """What is asked for by name, the client itself first; empty where it is only Python."""
    required = _requirements(client)
    if required.suffix == ".json":
        by_name: dict[str, str] = json.loads(required.read_text())["dependencies"]
        return by_name
    pinned = (line.partition("==") for line in required.read_text().split())
    return {name.partition("[")[0]: version for name, _, version in pinned}


def command(client: str) -> list[str]:
    """Runs the client's program, in an environment that is made now if it is not there.

    Raises CannotInstall, with what the installer wrote, or TimeoutExpired.
    """
    environment = _environment(client)
    if _requirements(client).suffix == ".json":
        for program in (*(HERE / client).glob("*.mjs"), HERE / "shared" / "steps.mjs"):
            shutil.copy(program, environment)  # Node looks for packages beside the program
        return ["node", str(environment / "program.mjs")]
    return [str(environment / "bin" / "python"), str(HERE / client / "program.py")]


def _requirements(client: str) -> Path:
    package = HERE / client / "package.json"
    return package if package.exists() else HERE / client / "requirements.txt"


def _environment(client: str) -> Path:
    required = _requirements(client)
    python = "" if required.suffix == ".json" else sys.version
    digest = hashlib.sha256((python + required.read_text()).encode()).hexdigest()[:12]
    environment = CACHE / f"{client}-{digest}"
    CACHE.mkdir(parents=True, exist_ok=True)
    with (CACHE / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # one at a time, in all test sessions of this user
        if not (environment / READY).exists():
            shutil.rmtree(environment, ignore_errors=True)
            _install(required, environment)
            (environment / READY).touch()
    return environment


def _install(required: Path, environment: Path) -> None:
    if required.suffix == ".json":
        environment.mkdir()
        shutil.copy(required, environment)
        _run("npm", "install", "--no-audit", "--no-fund", "--ignore-scripts", cwd=environment)
        return
    uv = (sys.executable, "-m", "uv")
    python = str(environment / "bin" / "python")
    _run(*uv, "venv", "--quiet", "--python", sys.executable, str(environment))
    _run(*uv, "pip", "install", "--quiet", "--python", python, "-r", str(required))


def _run(*arguments: str, cwd: Path | None = None) -> None:
    ran = subprocess.run(
        arguments, cwd=cwd, timeout=INSTALL_LIMIT_S, text=True, capture_output=True
    )
    if ran.returncode:
        raise CannotInstall(f"{' '.join(arguments)}\n{ran.stdout}{ran.stderr}")
