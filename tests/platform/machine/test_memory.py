"""How much memory is left here, from files as a kernel writes them."""

from __future__ import annotations

from pathlib import Path

import pytest

from baton.platform.machine.memory import read_memory

GIB = 1 << 30
MEMINFO = f"MemTotal: {64 * GIB >> 10} kB\nMemFree: 1 kB\nMemAvailable: {32 * GIB >> 10} kB\n"
V2, V1 = "sys/fs/cgroup", "sys/fs/cgroup/memory"


def machine(root: Path, files: dict[str, str]) -> Path:
    for name, text in {"proc/meminfo": MEMINFO, **files}.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return root


def group(folder: str, limit: str, used: int, version: int = 2) -> dict[str, str]:
    names = {1: ("limit_in_bytes", "usage_in_bytes"), 2: ("max", "current")}[version]
    texts = (f"{limit}\n", f"{used}\n")
    return {f"{folder}/memory.{name}": text for name, text in zip(names, texts, strict=True)}


@pytest.mark.parametrize(
    "files",
    [{}, group(V2, "max", 5), group(V1, "9223372036854771712", 5, version=1)],
)
def test_where_nothing_is_limited_the_machines_memory_is_left(
    files: dict[str, str], tmp_path: Path
) -> None:
    memory = read_memory(machine(tmp_path, files))

    assert memory.limit is None
    assert memory.left == memory.available == 32 * GIB
    assert memory.whole == 64 * GIB


@pytest.mark.parametrize("version", [1, 2])
def test_a_container_that_sees_its_own_group_as_the_root_has_what_the_limit_leaves(
    version: int, tmp_path: Path
) -> None:
    folder = {1: V1, 2: V2}[version]

    memory = read_memory(machine(tmp_path, group(folder, str(8 * GIB), 2 * GIB, version)))

    assert memory.limit == memory.whole == 8 * GIB
    assert memory.left == 6 * GIB


@pytest.mark.parametrize("version", [1, 2])
def test_of_nested_groups_the_one_that_leaves_least_counts(version: int, tmp_path: Path) -> None:
    line, folder = {1: ("4:memory:/pod/one\n0::/\n", V1), 2: ("0::/pod/one\n", V2)}[version]
    files = {
        "proc/self/cgroup": line,
        **group(f"{folder}/pod/one", str(6 * GIB), 1 * GIB, version),
        **group(f"{folder}/pod", str(8 * GIB), 7 * GIB, version),  # with a sidecar's
    }

    memory = read_memory(machine(tmp_path, files))

    assert memory.limit == 8 * GIB
    assert memory.left == 1 * GIB


@pytest.mark.parametrize("version", [1, 2])
def test_files_that_were_read_do_not_take_the_room(version: int, tmp_path: Path) -> None:
    folder, prefix = {1: (V1, "total_"), 2: (V2, "")}[version]
    stat = f"anon {GIB}\n{prefix}inactive_file {4 * GIB}\n{prefix}active_file {2 * GIB}\n"
    files = {**group(folder, str(8 * GIB), 7 * GIB, version), f"{folder}/memory.stat": stat}

    assert read_memory(machine(tmp_path, files)).left == 7 * GIB


@pytest.mark.parametrize(
    ("name", "text"),
    [
        (f"{V2}/memory.events", "low 0\nhigh 0\nmax 3\noom 3\noom_kill 2\n"),
        (f"{V1}/memory.oom_control", "oom_kill_disable 0\nunder_oom 0\noom_kill 2\n"),
    ],
)
def test_who_was_killed_for_want_of_memory_is_counted(name: str, text: str, tmp_path: Path) -> None:
    assert read_memory(machine(tmp_path, {name: text})).num_killed == 2
