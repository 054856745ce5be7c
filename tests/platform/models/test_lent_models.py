"""Models that other nodes have: whole, as they are at home, and before the source is asked."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

import msgspec
import pytest
from tests.file_server import FileServer
from tests.platform.models.fetched_files import FILES, TEMPLATES, WEIGHTS, contents

from baton.core.errors import CheckpointError, ModelUnreachable
from baton.platform.models.lending import Lender, LentModel
from baton.platform.models.listing import RemoteFile
from baton.platform.models.model_folder import find_model
from baton.platform.models.origins.origin import OriginUnreachable
from baton.platform.models.peers import Answers, Peer


class OtherNode:
    """A node with a cache of its own, which lends what it has; without Ray."""

    def __init__(self, cache: Path, *, lies: bool = False, is_lost: bool = False) -> None:
        self.name, self._cache, self._lies, self._is_lost = (
            f"node {cache.name}",
            cache,
            lies,
            is_lost,
        )
        self.num_lent = 0

    def having(
        self, model: str, version: str, *, is_lent: bool = False
    ) -> AbstractContextManager[Answers]:
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("BATON_MODEL_CACHE", str(self._cache))
            self._lender = Lender(model, version)
        if not (found := self._lender.lent()):
            return nullcontext(Answers())
        lent = msgspec.json.decode(found, type=LentModel)
        self.listing, self.is_home = lent.listing, lent.is_home
        return nullcontext(Answers((self,)))

    def has(self, file: RemoteFile) -> bool:
        return self._lender.has(file.name)

    def described(self, file: RemoteFile) -> RemoteFile:
        return msgspec.structs.replace(file, digest=self._lender.digest(file.name))

    def read(self, file: RemoteFile, start: int) -> Iterator[bytes]:
        self.num_lent += 1
        while start < file.size:
            piece = self._lender.read(file.name, start, 1 << 20)
            start += len(piece)
            yield piece[:-1] + b"?" if self._lies else piece
            if self._is_lost:
                raise OriginUnreachable(f"{self.name}: gone")


def fetched_by_another(web: FileServer, other: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setenv("BATON_MODEL_CACHE", str(other))
        find_model(f"{web.url}/m")
    web.asked.clear()


@pytest.mark.parametrize("is_down", [False, True])
def test_a_node_that_has_it_is_asked_before_the_source(
    web: FileServer, tmp_path: Path, is_down: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = OtherNode(tmp_path / "other")
    fetched_by_another(web, tmp_path / "other", monkeypatch)
    web.is_down = is_down

    assert contents(find_model(f"{web.url}/m", peers=other)) == FILES

    assert web.fetched() == []
    assert other.num_lent == len(FILES)


@pytest.mark.parametrize("trouble", ["lies", "is_lost"])
def test_the_source_is_asked_where_another_node_fails(
    web: FileServer,
    tmp_path: Path,
    trouble: str,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    other = OtherNode(tmp_path / "other", **{trouble: True})
    fetched_by_another(web, tmp_path / "other", monkeypatch)

    with caplog.at_level(logging.WARNING):
        assert contents(find_model(f"{web.url}/m", peers=other)) == FILES

    assert "it is asked for elsewhere" in caplog.text
    assert "m/model.safetensors" in web.fetched()


class Elsewhere(OtherNode):
    """The node that a folder is on: this machine has it under another name."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self._folder = folder

    def having(
        self, model: str, version: str, *, is_lent: bool = False
    ) -> AbstractContextManager[Answers]:
        return super().having(str(self._folder), version)


class Others:
    """Nodes that are asked together."""

    def __init__(self, *nodes: OtherNode) -> None:
        self._nodes = nodes
        self.is_complete = True

    def having(self, model: str, version: str, *, is_lent: bool) -> AbstractContextManager[Answers]:
        found: list[Peer] = []
        for node in self._nodes:
            with node.having(model, version) as answers:
                found += answers.having
        return nullcontext(Answers(found, self.is_complete))


def test_a_folder_that_is_only_on_another_node_is_borrowed_from_there(
    cache: Path, tmp_path: Path, far: Path
) -> None:
    (far / "additional_chat_templates").mkdir()
    for name, data in TEMPLATES.items():
        (far / name).write_bytes(data)
    folder = find_model(str(tmp_path / "not_here"), peers=Elsewhere(far))

    assert contents(folder) == {**FILES, **TEMPLATES}
    assert not [*cache.glob("*/*.partial")]
    change(far / "config.json", b'{"b": 2}')
    newer = find_model(str(tmp_path / "not_here"), peers=Elsewhere(far))
    assert contents(newer)["config.json"] == b'{"b": 2}'
    assert find_model(str(tmp_path / "not_here"), peers=OtherNode(tmp_path / "other")) == newer
    with pytest.raises(CheckpointError, match="no folder /not_here_either; give a model folder"):
        find_model("/not_here_either", peers=OtherNode(tmp_path / "other"))


def change(file: Path, data: bytes) -> None:
    """Later, however soon: a clock of file systems may tick each ten milliseconds only."""
    written_ns = file.stat().st_mtime_ns + 10**9
    file.write_bytes(data)
    os.utime(file, ns=(written_ns, written_ns))


def borrowed_by(
    other: Path, far: Path, monkeypatch: pytest.MonkeyPatch, *, wants_weights: bool = True
) -> OtherNode:
    """A node that took the folder as it is now."""
    with monkeypatch.context() as patch:
        patch.setenv("BATON_MODEL_CACHE", str(other))
        find_model("/far", wants_weights=wants_weights, peers=Elsewhere(far))
    return OtherNode(other)


@pytest.mark.parametrize("home_comes", ["first", "last"])
def test_a_lent_folder_is_what_it_is_at_home_whatever_others_took_before(
    cache: Path, tmp_path: Path, far: Path, monkeypatch: pytest.MonkeyPatch, home_comes: str
) -> None:
    before = borrowed_by(tmp_path / "other", far, monkeypatch)
    change(far / "model.safetensors", WEIGHTS[::-1])
    nodes = [before, Elsewhere(far)]

    folder = find_model("/far", peers=Others(*(nodes if home_comes == "last" else nodes[::-1])))

    assert (folder / "model.safetensors").read_bytes() == WEIGHTS[::-1]
    (far / "config.json").unlink()  # no model there any more: what came last is gone on with
    assert find_model("/far", peers=Others(before, Elsewhere(far))) == folder


def test_without_its_home_a_folder_is_what_is_whole_on_most_nodes(
    cache: Path, tmp_path: Path, far: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = [borrowed_by(tmp_path / name, far, monkeypatch) for name in "ab"]
    change(far / "tokenizer.json", b'{"a": 2}')
    newer = borrowed_by(tmp_path / "c", far, monkeypatch)
    change(far / "tokenizer.json", b'{"a": 3}')
    light = [borrowed_by(tmp_path / name, far, monkeypatch, wants_weights=False) for name in "def"]

    assert contents(find_model("/far", peers=Others(*light, newer, *whole))) == FILES


def test_a_folder_may_come_another_time_while_some_node_has_not_answered(
    cache: Path, tmp_path: Path, far: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    others = Others(borrowed_by(tmp_path / "other", far, monkeypatch))
    others.is_complete = False

    with pytest.raises(ModelUnreachable, match=r"not every other node says .* try again"):
        find_model("/far", peers=others)

    others.is_complete = True
    assert contents(find_model("/far", peers=others)) == FILES
