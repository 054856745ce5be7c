"""Certificates for 127.0.0.1, made by the openssl program."""

from __future__ import annotations

import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

import pytest


@dataclass(frozen=True)
class Certificate:
    cert_file: Path
    key_file: Path


def make_certificate(folder: Path, name: str = "server") -> Certificate:
    """Signed by itself, so that it is its own authority."""
    openssl = shutil.which("openssl")
    if openssl is None:
        pytest.skip("needs the openssl program")
    made = Certificate(folder / f"{name}.pem", folder / f"{name}.key")
    subprocess.run(
        [
            openssl, "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256",
            "-nodes", "-days", "1", "-subj", f"/CN={name}",
            "-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1",
            "-keyout", str(made.key_file), "-out", str(made.cert_file),
        ],
        check=True,
        capture_output=True,
    )  # fmt: skip
    return made
