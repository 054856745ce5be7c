"""Does constraints.txt install on machines that are not ours? Run by `make resolve`.

    every Python x every kind of machine  ->  uv pip compile: all extras, wheels only

It needs the registry, resolves from metadata alone, and reads no configuration of this machine's
pip or uv: a folder of wheels that pip is told of here (a torch for CPUs, which asks for no triton)
hides what everybody else meets. Of this machine it takes certificates and proxies.
"""

from __future__ import annotations

import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from tests.install.pins import (
    CONSTRAINTS,
    PROJECT,
    Target,
    extras,
    read_pins,
    supported_targets,
    without_a_pin,
)

GLIBC = "2_31"  # of Debian 11 and Ubuntu 20.04: the oldest that every wheel asks for no more than

_KEPT = ("HOME", "PATH", "TMPDIR", "SSL_CERT_FILE", "SSL_CERT_DIR", "UV_CACHE_DIR")
_PROXIES = ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY")
_CERTIFICATES = ("SSL_CERT_FILE", "PIP_CERT", "REQUESTS_CA_BUNDLE")

_NO_SOLUTION = 1  # uv's exit status; whatever else went wrong is 2


@dataclass(frozen=True, slots=True)
class Resolution:
    target: Target
    versions: dict[str, str]  # by canonical name; none if there is no solution
    complaint: str = ""


def resolve(target: Target, constraints: Path) -> Resolution:
    """What an install would take there, or why it cannot."""
    command = [sys.executable, "-m", "uv", "pip", "compile", str(PROJECT), "-c", str(constraints)]
    command += ["--no-config", "--no-sources", "--no-python-downloads", "--python", sys.executable]
    command += ["--only-binary", ":all:", "--python-version", target.python]
    command += ["--python-platform", f"{target.machine}-manylinux_{GLIBC}"]
    command += ["--no-header", "--no-annotate", *(f"--extra={extra}" for extra in extras())]
    run = subprocess.run(command, env=environment(), capture_output=True, text=True)
    if run.returncode:
        return Resolution(target, {}, f"{run.stderr.strip()}\n{remedy(run.returncode)}")
    return Resolution(target, read_pins(run.stdout))


def environment() -> dict[str, str]:
    """Nothing that tells pip or uv where to look; only how to get out of here."""
    proxies = {name for proxy in _PROXIES for name in (proxy, proxy.lower())}
    kept = {name: os.environ[name] for name in proxies.union(_KEPT) if name in os.environ}
    certificates = [os.environ[name] for name in _CERTIFICATES if name in os.environ]
    return kept | ({"SSL_CERT_FILE": certificates[0]} if certificates else {})


def remedy(status: int) -> str:
    if status == _NO_SOLUTION:
        return (
            "remedy: change one of the pins named above to what the others ask for (triton's to"
            " what torch names), or, where there is no wheel, to a version that has one"
        )
    return "remedy: is the registry reached? Certificates are taken from SSL_CERT_FILE or PIP_CERT"


def drift(resolutions: list[Resolution], pins: dict[str, str]) -> list[str]:
    """Where constraints.txt and what would be installed differ, each with a remedy."""
    versions = {name: v for found in resolutions for name, v in found.versions.items()}
    missing = without_a_pin(versions, pins)
    unused = sorted(pins.keys() - versions.keys())
    return [
        f"{name} is installed but not pinned: add {name}=={versions[name]}" for name in missing
    ] + [f"{name} is pinned but never installed: remove it" for name in unused]


def main(constraints: Path = CONSTRAINTS) -> int:
    pins = read_pins(constraints.read_text())
    targets = supported_targets()
    with ThreadPoolExecutor(len(targets)) as pool:
        resolutions = list(pool.map(partial(resolve, constraints=constraints), targets))
    complaints = [found.complaint for found in resolutions if found.complaint]
    for found in resolutions:
        print(
            f"{found.target}: {'FAILED' if found.complaint else f'{len(found.versions)} packages'}"
        )
    faults = list(dict.fromkeys(complaints)) or drift(resolutions, pins)
    for fault in faults:
        print(f"{constraints.name}: {fault}")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main(*map(Path, sys.argv[1:])))
