"""Fetches the programs of tests/tools.py that are neither there nor on PATH. Run by `make tools`.

    Debian's packages  -> tools/debian  unpacked, not installed: nobody has to be root
    checkov            -> tools/checkov an environment of its own
    tools/bin          -> a link or a script to each

Chromium's libraries that the machine lacks come with it, as apt would choose them.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from tests.tools import BIN, NAMES, TOOLS, find

CHECKOV = "checkov==3.3.30"
"""A later one has other policies, and a chart that was clean no longer is."""
DEBIAN = TOOLS / "debian"
UNWANTED = ("usr/share/doc", "usr/share/javascript", "usr/share/locale", "usr/share/man")
SCRIPT = """#!/bin/sh
export LD_LIBRARY_PATH="{libraries}${{LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}}" {fonts}
exec {root}/usr/lib/chromium/chromium "$@"
"""


def main() -> None:
    missing = [tool for tool in NAMES if find(tool) is None]
    if not missing:
        return
    print(f"tools: {', '.join(missing)} into {TOOLS}", flush=True)
    BIN.mkdir(parents=True, exist_ok=True)
    if "checkov" in missing:
        get_checkov()
    from_debian = set(missing) - {"checkov"}
    if from_debian and shutil.which("apt-get") is None:
        raise SystemExit(f"tools: no apt-get here; install {', '.join(sorted(from_debian))}")
    if from_debian and os.geteuid() == 0:
        apt("update")  # lists of an older day name packages that are no longer there
    if from_debian & {"prometheus", "promtool"}:
        unpack(["prometheus"])  # its dependencies are pages of its own that nobody opens here
        for tool in ("prometheus", "promtool"):
            link(DEBIAN / "usr" / "bin" / tool)
    if "chromium" in from_debian:
        unpack([*needed_by("chromium"), "fonts-dejavu-core"])  # it ends where it finds no font
        write_chromium()


def get_checkov() -> None:
    folder = TOOLS / "checkov"
    subprocess.run([sys.executable, "-m", "venv", "--clear", folder], check=True)
    pip = [str(folder / "bin" / "python"), "-m", "pip", "--disable-pip-version-check"]
    subprocess.run([*pip, "install", "-qq", CHECKOV], check=True)
    link(folder / "bin" / "checkov")


def needed_by(package: str) -> list[str]:
    """Itself, and all it needs that is not installed."""
    told = apt("install", "--simulate", "--no-install-recommends", package)
    lines = [line.split() for line in told.splitlines()]
    return [line[1] for line in lines if line[:1] == ["Inst"]]


def unpack(packages: Sequence[str]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        apt("download", *packages, cwd=folder)
        for package in sorted(Path(folder).glob("*.deb")):
            reading = ["dpkg-deb", "--fsys-tarfile", str(package)]
            writing = ["tar", "-x", "-C", str(DEBIAN), *(f"--exclude=./{one}" for one in UNWANTED)]
            DEBIAN.mkdir(exist_ok=True)
            with subprocess.Popen(reading, stdout=subprocess.PIPE) as read:
                subprocess.run(writing, stdin=read.stdout, check=True)


def write_chromium() -> None:
    roots = [folder for name in ("lib", "usr/lib") for folder in (DEBIAN / name).glob("*-linux-*")]
    folders = {library.parent for root in roots for library in root.rglob("lib*.so*")}
    has_fonts = Path("/etc/fonts/fonts.conf").exists()
    script = BIN / "chromium"
    script.write_text(
        SCRIPT.format(
            root=DEBIAN,
            libraries=":".join(map(str, sorted(folders))),
            fonts="" if has_fonts else f"FONTCONFIG_SYSROOT={DEBIAN}",
        )
    )
    script.chmod(0o755)


def link(program: Path) -> None:
    there = BIN / program.name
    there.unlink(missing_ok=True)
    there.symlink_to(program)


def apt(*words: str, cwd: str | None = None) -> str:
    """What it says."""
    command = ["apt-get", "-q", "-o", "Acquire::Retries=3", *words]
    if os.geteuid() == 0:
        command += ["-o", "APT::Sandbox::User=root"]  # apt's own user may not write to our folder
    ran = subprocess.run(command, cwd=cwd, stdout=subprocess.PIPE, text=True, check=True)
    return ran.stdout


if __name__ == "__main__":
    main()
