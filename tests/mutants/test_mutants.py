"""Faults are planted where they belong and nowhere else, and what came of them is kept."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from tests.mutants.fault import FOLDERS_BY_AREA, Fault, StaleFault, place_of, read_faults
from tests.mutants.results import Fate, Result, Results, table
from tests.mutants.run import Laboratory, try_until_sure
from tests.mutants.tree import Run, Tree

TESTS = Path(__file__).parents[1]
FAULT = Fault(
    name="one too few",
    area="engine",
    file="engine/pool.py",
    old="num_blocks - 1",
    new="num_blocks - 2",
    harm="A block is never used.",
    tests=("tests/engine/test_pool.py",),
)


def tree(folder: Path, path: str = FAULT.file, text: str = "left = num_blocks - 1\n") -> Tree:
    file = folder / path
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)
    return Tree(folder, folder / "cache")


def result(fault: Fault, fate: Fate, *, tier: str = "test") -> Result:
    return Result(fault=fault.name, digest=fault.digest, revision="a1b2c3d", tier=tier, fate=fate)


def test_a_fault_is_there_while_it_is_planted_and_gone_afterwards(tmp_path: Path) -> None:
    file = tmp_path / FAULT.file
    with pytest.raises(KeyError), tree(tmp_path).planted(FAULT):
        assert file.read_text() == "left = num_blocks - 2\n"
        raise KeyError

    assert file.read_text() == "left = num_blocks - 1\n"


@pytest.mark.parametrize("text", ["", "num_blocks - 1, num_blocks - 1"])
def test_a_fault_whose_text_is_not_there_exactly_once_is_stale(tmp_path: Path, text: str) -> None:
    tree(tmp_path, text=text)
    with pytest.raises(StaleFault, match="one too few"):
        place_of(FAULT, tmp_path)


def test_a_file_that_was_moved_is_found_by_its_name_and_text(tmp_path: Path) -> None:
    tree(tmp_path, "engine/cache/pool.py")
    tree(tmp_path, "kv_transfer/pool.py", "another file of that name")
    tree(tmp_path, "tests/engine/pool.py")

    assert place_of(FAULT, tmp_path).path == tmp_path / "engine/cache/pool.py"


class PretendedTests(Tree):
    """A fault's own tests pass; those of whole folders crash with FAULT, and one of them fails with
    or without a fault, unless it is left out."""

    def test(
        self,
        tests: Sequence[str],
        options: Sequence[str],
        *,
        limit_s: float,
        has_own_kernels: bool = False,
    ) -> Run:
        planted = "num_blocks - 2" in (self.folder / FAULT.file).read_text()
        if "--deselect" not in options and (FLAKY in tests or "tests/services" in tests):
            return Run(1, (FLAKY,), "1 failed")
        if planted and "tests/services" in tests:
            return Run(-11, (), "Segmentation fault")
        return Run(0, (), "passed")


FLAKY = "tests/engine/test_flaky.py::test_sometimes"


def laboratory(folder: Path, *, unreliable: set[str]) -> Laboratory:
    tree(folder)
    (folder / "engine/other.py").write_text("left = num_blocks + 1")
    return Laboratory(
        tree=PretendedTests(folder, folder / "cache"),
        revision="a1b2c3d",
        tier="test",
        unreliable=unreliable,
    )


def test_of_faults_whose_tests_break_together_each_is_tried_alone(tmp_path: Path) -> None:
    other = replace(FAULT, name="another", file="engine/other.py", old="+ 1", new="+ 2")

    found = laboratory(tmp_path, unreliable={FLAKY}).together([FAULT, other])

    assert [result.fate for result in found] == [Fate.KILLED, Fate.SURVIVED]
    assert found[0].note == "Segmentation fault"


def test_what_a_test_killed_that_fails_without_a_fault_is_never_kept(tmp_path: Path) -> None:
    kept: list[Result] = []

    class Watched(Results):
        def add(self, result: Result) -> None:
            kept.append(result)

    results = Watched(tmp_path / "results.json")
    try_until_sure([FAULT], laboratory(tmp_path, unreliable=set()), results, is_narrow=False)

    assert [(result.fate, result.killer) for result in kept] == [(Fate.KILLED, "")]


def test_what_is_known_of_a_fault_does_not_count_for_another_wording(tmp_path: Path) -> None:
    path = tmp_path / "results.json"
    one, other = Results(path), Results(path)
    one.add(result(FAULT, Fate.SURVIVED))
    other.add(result(FAULT, Fate.KILLED, tier="all"))
    one.add(result(FAULT, Fate.STALE))

    known = Results(path)
    assert known.of(FAULT, "a1b2c3d", "test") == result(FAULT, Fate.STALE)
    assert known.of(FAULT, "a1b2c3d", "all") == result(FAULT, Fate.KILLED, tier="all")
    assert known.of(replace(FAULT, new="num_blocks"), "a1b2c3d", "test") is None


def test_what_make_test_kills_make_test_all_need_not_be_run_for(tmp_path: Path) -> None:
    results = Results(tmp_path / "results.json")
    results.add(result(FAULT, Fate.SURVIVED, tier="all"))
    results.add(result(FAULT, Fate.KILLED))

    assert results.of(FAULT, "a1b2c3d", "all") == result(FAULT, Fate.KILLED)


def test_the_table_counts_what_was_seen_and_names_what_was_not(tmp_path: Path) -> None:
    results = Results(tmp_path / "results.json")
    survivor = replace(FAULT, name="nobody looks")
    results.add(result(FAULT, Fate.TIMED_OUT))
    results.add(result(survivor, Fate.SURVIVED))

    told = table([FAULT, survivor], results, [(["0f1e2d3", "a1b2c3d"], "test")])

    assert "| engine | 2 | 1 |" in told
    assert "- survived, test at 0f1e2d3 or a1b2c3d: `nobody looks`" in told
    assert "one too few" not in told


def test_every_fault_is_a_mistake_in_the_code_as_it_is() -> None:
    for fault in read_faults():
        place_of(fault, TESTS.parent)


def test_faults_have_names_of_their_own_and_tests_that_could_see_them() -> None:
    faults = read_faults()
    assert len({fault.name for fault in faults}) == len(faults) >= 60
    for fault in faults:
        folders = tuple(f"tests/{folder}" for folder in FOLDERS_BY_AREA[fault.area])
        assert fault.old != fault.new
        assert all(test.startswith(folders) for test in fault.tests), fault.name
    named = {folder for folders in FOLDERS_BY_AREA.values() for folder in folders}
    assert all((TESTS / folder).is_dir() for folder in named)
