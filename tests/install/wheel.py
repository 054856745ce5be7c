"""A wheel with prebuilt kernels, made and tried where there is no compiler. Run by `make wheel`.

    build   kernels for kinds of CPU  ->  build/prebuilt/*.so  ->  dist/baton_llm-*.whl
    try     an empty environment: the wheel, and on PATH nothing else; no cache, no compiler
            `baton generate demo`, for each library that this CPU can run, the best first:
            it must use that library, compile nothing, and say what torch says in the checkout

The empty environment borrows Baton's dependencies from the one that runs this, by a .pth file:
downloading gigabytes again would show nothing about the wheel. A wheel for another kind of machine
(`CXX=aarch64-linux-gnu-g++ ... armv8-a`) is made, and not tried.
"""

from __future__ import annotations

import json
import os
import platform
import re
import subprocess
import sys
import sysconfig
import tempfile
from dataclasses import dataclass
from pathlib import Path

from tests.install.pins import ROOT

PREBUILT = ROOT / "build" / "prebuilt"
DIST = ROOT / "dist"

# What `baton` does, and the log says on standard error which library was loaded.
_BATON = """
import logging
logging.basicConfig(format="%(message)s")
logging.getLogger("baton.kernels.cpu.library").setLevel(logging.INFO)
from baton.platform.cli.main import app
app()
"""
_GENERATE = ("generate", "demo", "def ", "--max-tokens", "8", "--temperature", "0", "--json")
_LOADED = re.compile(r"^kernels on the CPU: (.+), built for (\S+)$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Answer:
    tokens: list[int]
    library: Path | None  # None: torch computed
    target: str = ""


def build(targets: list[str]) -> Path:
    """Objects of an earlier build are used again; its libraries would be shipped, and are not."""
    for library in PREBUILT.glob("*.so"):
        library.unlink()
    command = [sys.executable, "-m", "baton.kernels.cpu", "--into", str(PREBUILT), *targets]
    subprocess.run(command, cwd=ROOT, env={**os.environ, "PYTHONPATH": "src"}, check=True)
    with tempfile.TemporaryDirectory() as folder:
        _pip("wheel", "--no-deps", "--wheel-dir", folder, str(ROOT), BATON_PREBUILT=str(PREBUILT))
        (made,) = Path(folder).glob("*.whl")
        DIST.mkdir(exist_ok=True)
        (DIST / made.name).write_bytes(made.read_bytes())
        return DIST / made.name


def empty_environment(folder: Path, wheel: Path) -> Path:
    """The folder of its programs: Python and `baton`, and no other."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder)], check=True)
    python = folder / "bin" / "python"
    _pip("--python", str(python), "install", "--no-deps", str(wheel))
    (site_packages,) = folder.glob("lib/python*/site-packages")
    # What lies in a folder that a .pth file names is found, but its own .pth files are not read:
    # so an editable Baton that is installed there stays unseen.
    (site_packages / "borrowed.pth").write_text(sysconfig.get_path("purelib") + "\n")
    return python.parent


def generate(command: list[str], environment: dict[str, str], folder: Path) -> Answer:
    run = subprocess.run(
        [*command, *_GENERATE], cwd=folder, env=environment, capture_output=True, text=True
    )
    if run.returncode:
        raise SystemExit(f"`baton {' '.join(_GENERATE)}` failed:\n{run.stderr}")
    tokens = json.loads(run.stdout)["token_ids"]
    loaded = _LOADED.search(run.stderr)
    return Answer(tokens, Path(loaded[1]), loaded[2]) if loaded else Answer(tokens, None)


def try_out(wheel: Path) -> list[Answer]:
    """Of the libraries that this CPU can run, and of torch, which is left when they are gone."""
    torch = {**os.environ, "PYTHONPATH": str(ROOT / "src"), "BATON_CPU_KERNELS": "torch"}
    expected = generate([sys.executable, "-c", _BATON], torch, ROOT)
    answers: list[Answer] = []
    with tempfile.TemporaryDirectory() as temporary:
        home = Path(temporary)
        programs = empty_environment(home / "environment", wheel)
        bare = {"HOME": str(home), "PATH": str(programs), "BATON_CACHE": str(home / "cache")}
        subprocess.run([str(programs / "baton"), "--version"], env=bare, check=True)
        while not answers or answers[-1].library is not None:
            answer = generate([str(programs / "python"), "-c", _BATON], bare, home)
            if answer.tokens != expected.tokens:
                raise SystemExit(f"{answer} differs from {expected.tokens} of the checkout")
            if answer.library is not None:
                answer.library.relative_to(programs.parent)  # ours, or ValueError
                answer.library.unlink()
            answers.append(answer)
        if (home / "cache" / "kernels").exists():
            raise SystemExit("something was compiled, though the wheel brings all that is needed")
    return answers


def main(targets: list[str]) -> int:
    wheel = build(targets)
    print(f"{wheel.relative_to(ROOT)}: {wheel.stat().st_size / 1e6:.1f} MB")
    if not wheel.stem.endswith(platform.machine()):
        print(f"not tried: it is not for {platform.machine()}")
        return 0
    *compiled, _ = try_out(wheel)
    for answer in compiled:
        print(f"without a compiler, {answer.target}: tokens {answer.tokens}, as torch's")
    if not compiled:
        print("no library in it runs on this CPU: add x86-64, or armv8-a, to VARIANTS")
    return 0 if compiled else 1


def _pip(*arguments: str, **environment: str) -> None:
    command = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check", *arguments]
    subprocess.run(command, env={**os.environ, **environment}, check=True)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:] or ["portable"]))
