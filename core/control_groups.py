"""The control groups of this process, which in a container limit what it may use.

    version 2   /sys/fs/cgroup/GROUP/              all controllers
    version 1   /sys/fs/cgroup/CONTROLLER/GROUP/   each by itself

GROUP is what /proc/self/cgroup says. A container may see only its own group, mounted as the root:
what lies on the path and is not there limits nothing.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path, PurePosixPath

_VERSION_2 = ""
"""The controllers of the line in /proc/self/cgroup that is version 2's: none are named."""


def folders_of_version_2(root: Path) -> Iterator[Path]:
    """The cgroup v2 folders of the process's group and of its parents, the innermost first."""
    for above in _with_parents(_groups(root).get(_VERSION_2, "/")):
        yield root / "sys/fs/cgroup" / above


def folders_of_version_1(root: Path, controller: str) -> Iterator[Path]:
    """The cgroup v1 folders of one controller: the process's group and its parents, likewise."""
    for above in _with_parents(_groups(root).get(controller, "/")):
        yield root / "sys/fs/cgroup" / controller / above


def text_of(path: Path) -> str:
    """Empty where there is none, or none for us."""
    try:
        return path.read_text()
    except OSError:
        return ""


def _groups(root: Path) -> dict[str, str]:
    """This process's group by controller, of lines such as `1:cpu,cpuacct:/docker/2f0a`."""
    group_by_controller: dict[str, str] = {}
    for line in text_of(root / "proc/self/cgroup").splitlines():
        _, controllers, group = line.split(":", 2)
        group_by_controller |= dict.fromkeys(controllers.split(","), group)
    return group_by_controller


def _with_parents(group: str) -> list[PurePosixPath]:
    path = PurePosixPath(group.lstrip("/"))
    return [path, *path.parents]
