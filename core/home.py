"""The user's home where HOME is not set: services and containers may start without it."""

from __future__ import annotations

import os
import pwd
from pathlib import Path


def home() -> Path:
    """HOME, else the user's home folder according to the system, else `/`, where writing fails with
    an error that names the remedy, as in any other folder."""
    if given := os.environ.get("HOME"):
        return Path(given)
    try:
        return Path(pwd.getpwuid(os.getuid()).pw_dir)
    except KeyError:  # a user of a number alone
        return Path("/")


def set_home() -> None:
    """Set HOME, for this process and those it starts: Ray's look nowhere else."""
    os.environ["HOME"] = str(home())
