"""Models from URLs and from other nodes, to the cache of this node."""

from __future__ import annotations

import hashlib
import json
import logging
import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

import fsspec
import msgspec
import pytest
from tests.file_server import FileServer, file_server

from baton.core.errors import CheckpointError, InvalidConfig, ModelUnreachable
from baton.platform.config.deployment import parse_config
from baton.platform.models import download
from baton.platform.models.lending import Lender, LentModel
from baton.platform.models.listing import Listing, RemoteFile
from baton.platform.models.model_folder import find_model
from baton.platform.models.origins.origin import Lost
from baton.platform.models.origins.web_token import token_headers
from baton.platform.models.peers import Answers, Peer

WEIGHTS = bytes(range(256)) * 12_000  # three pieces and some
FILES = {"config.json": b"{}", "tokenizer.json": b'{"a": 1}', "model.safetensors": WEIGHTS}
TEMPLATES = {"additional_chat_templates/tool_use.jinja": b"{{ tools }}"}
INDEX = "model.safetensors.index.json"


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("BATON_MODEL_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(download.Download.__init__, "__defaults__", ((0.0, 0.0),))
    return tmp_path / "cache"


@pytest.fixture
def web(cache: Path) -> Iterator[FileServer]:
    with file_server({f"m/{name}": data for name, data in FILES.items()}) as server:
        yield server


def sums(files: dict[str, bytes]) -> bytes:
    """As `sha256sum *` writes it."""
    lines = [f"{hashlib.sha256(data).hexdigest()}  {name}\n" for name, data in files.items()]
    return "".join(lines).encode()


def contents(folder: Path) -> dict[str, bytes]:
    files = [path for path in folder.rglob("*") if path.is_file()]
    return {str(path.relative_to(folder)): path.read_bytes() for path in files}


def final_names(cache: Path) -> set[str]:
    """The files that somebody could take for whole."""
    return {path.name for path in cache.glob("*/*/*") if path.parent.suffix != ".partial"} & {
        *FILES
    }


def test_a_model_of_a_url_is_fetched_once_and_gateways_fetch_no_weights(web: FileServer) -> None:
    light = find_model(f"{web.url}/m", wants_weights=False)
    assert set(contents(light)) == {"config.json", "tokenizer.json"}

    folder = find_model(f"{web.url}/m/")
    assert folder == light
    assert contents(folder) == FILES
    assert find_model(f"{web.url}/m") == folder
    assert sorted(web.fetched()) == [f"m/{name}" for name in sorted(FILES)]  # each once

    web.is_down = True
    assert find_model(f"{web.url}/m") == folder
    web.is_down, kept = False, dict(web.files)
    web.files.clear()  # nor does it matter what became of it there
    assert find_model(f"{web.url}/m") == folder
    web.files |= kept

    web.is_down, web.files["m/config.json"] = False, b'{"b": 2}'
    newer = find_model(f"{web.url}/m")
    assert newer != folder  # whoever has opened the old one goes on with it
    assert contents(folder) == FILES


@pytest.mark.parametrize("knows_ranges", [True, False])
def test_what_came_before_a_cut_is_not_asked_for_again(
    web: FileServer, cache: Path, knows_ranges: bool
) -> None:
    web.knows_ranges = knows_ranges
    web.cuts = [1_000_000, 0, 0, 0]  # then nothing more comes: it is given up
    with pytest.raises(ModelUnreachable, match=r"model\.safetensors does not come from .* is kept"):
        find_model(f"{web.url}/m")
    assert final_names(cache) == {"config.json", "tokenizer.json"}

    folder = find_model(f"{web.url}/m")

    assert contents(folder) == FILES
    assert web.asked[-1] == ("m/model.safetensors", "bytes=1000000-")


def test_a_part_of_which_nobody_says_what_it_is_is_not_taken(web: FileServer) -> None:
    web.places_parts = False
    web.cuts = [1_000_000]

    assert contents(find_model(f"{web.url}/m")) == FILES
    assert web.asked[-2:] == [
        ("m/model.safetensors", "bytes=1000000-"),
        ("m/model.safetensors", ""),
    ]


def test_a_bucket_that_forbids_what_it_lacks_is_a_model_all_the_same(web: FileServer) -> None:
    web.hides = True
    assert contents(find_model(f"{web.url}/m")) == FILES

    with pytest.raises(CheckpointError, match=r"config\.json answers 403; set BATON_MODEL_TOKEN"):
        find_model(f"{web.url}/of_others")


def test_wrong_bytes_get_no_name(web: FileServer, cache: Path) -> None:
    web.files["m/SHA256SUMS"] = sums(FILES)
    web.files["m/model.safetensors"] = WEIGHTS[:-1] + b"?"

    with pytest.raises(CheckpointError, match=r"sha256:\w+ where sha256:\w+ is promised; it is br"):
        find_model(f"{web.url}/m")

    assert final_names(cache) == {"config.json", "tokenizer.json"}
    web.files["m/model.safetensors"] = WEIGHTS
    assert contents(find_model(f"{web.url}/m")) == FILES


def test_bytes_that_rotted_in_what_came_before_are_taken_anew(web: FileServer, cache: Path) -> None:
    web.files["m/SHA256SUMS"] = sums(FILES)
    web.cuts = [1_000_000, 0, 0, 0]
    with pytest.raises(ModelUnreachable):
        find_model(f"{web.url}/m")
    [partial] = cache.glob("*/*.partial/model.safetensors")
    partial.write_bytes(b"?" * 1_000_000)

    assert contents(find_model(f"{web.url}/m")) == FILES


def test_processes_of_a_node_fetch_it_once_between_them(web: FileServer) -> None:
    with ThreadPoolExecutor(4) as threads:
        folders = set(threads.map(find_model, [f"{web.url}/m"] * 4))

    assert len(folders) == 1
    assert sorted(web.fetched()) == [f"m/{name}" for name in sorted(FILES)]


@pytest.mark.parametrize(
    "name",
    [
        *("../../evil.safetensors", "/etc/evil", "a/../evil", ".evil"),
        *("additional_chat_templates/../a.jinja", "additional_chat_templates//a.jinja"),
    ],
)
def test_no_name_of_a_file_leads_out_of_the_folder(web: FileServer, cache: Path, name: str) -> None:
    web.files[f"m/{INDEX}"] = json.dumps({"weight_map": {"w": name}}).encode()
    with pytest.raises(CheckpointError, match="names a file outside its folder"):
        find_model(f"{web.url}/m")

    web.files["m/SHA256SUMS"] = sums({**FILES, name: b"evil"})
    del web.files[f"m/{INDEX}"]
    assert contents(find_model(f"{web.url}/m")) == FILES

    listing = {"model": "m", "version": "v", "files": [{"name": name, "size": 4}]}
    with pytest.raises(msgspec.ValidationError, match="is no name of a file"):
        msgspec.json.decode(json.dumps(listing), type=Listing)


def test_a_pickle_of_a_url_is_not_taken(web: FileServer) -> None:
    web.files["m/pytorch_model.bin"] = web.files.pop("m/model.safetensors")
    web.files["m/SHA256SUMS"] = sums({"config.json": b"{}", "pytorch_model.bin": WEIGHTS})

    with pytest.raises(CheckpointError, match="holds neither"):
        find_model(f"{web.url}/m")


def test_a_token_stays_with_its_server(web: FileServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BATON_MODEL_TOKEN", "secret")
    with file_server({"w": WEIGHTS}) as elsewhere:
        del web.files["m/model.safetensors"]
        web.redirects["m/model.safetensors"] = f"{elsewhere.url}/w"
        web.redirects["m/config.json"] = f"{web.url}/m/tokenizer.json"

        assert (find_model(f"{web.url}/m") / "model.safetensors").read_bytes() == WEIGHTS

        assert set(elsewhere.authorizations) == {""}
        assert set(web.authorizations) == {"Bearer secret"}


def test_a_token_is_shown_to_the_server_that_it_is_for(
    web: FileServer, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("BATON_MODEL_TOKEN", "secret")
    monkeypatch.setenv("BATON_MODEL_TOKEN_HOST", web.url.removeprefix("http://"))
    with file_server({f"d/{name}": data for name, data in FILES.items()}) as of_the_draft:
        find_model(f"{web.url}/m")
        find_model(f"{of_the_draft.url}/d")

        assert set(web.authorizations) == {"Bearer secret"}
        assert set(of_the_draft.authorizations) == {""}
        assert f"is not sent for {of_the_draft.url}/d: it is for" in caplog.text


def test_a_token_is_shown_to_nobody_on_the_way(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BATON_MODEL_TOKEN", "secret")
    assert token_headers("https://far/m") and not token_headers("http://far/m")

    monkeypatch.setenv("BATON_MODEL_TOKEN_HOST", "FAR")
    assert token_headers("http://far:8000/m") and not token_headers("https://far.evil/m")


def test_credentials_in_a_url_are_refused_before_anybody_hears_of_them() -> None:
    for model in ("https://me:word@host/m", "s3://key:word@bucket/m", "https://host/m?sig=word"):
        with pytest.raises(InvalidConfig, match="in the environment of the nodes") as refusal:
            parse_config({"model": model})
        assert "word" not in str(refusal.value).replace("password", "")
    assert parse_config({"model": "hf://org/name@v1"}).model_name == "name"
    assert parse_config({"model": "s3://bucket/llama@2/"}).model_name == "llama@2"


@pytest.mark.parametrize("scheme", ["memory", "file"])
def test_any_file_system_will_do(
    cache: Path, tmp_path: Path, scheme: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = f"{scheme}://{tmp_path}/far"
    fs, root = fsspec.core.url_to_fs(url)
    fs.makedirs(f"{root}/sub")
    fs.makedirs(f"{root}/additional_chat_templates")
    files = {**FILES, **TEMPLATES}
    for name, data in {**files, "SHA256SUMS": sums(FILES), "sub/x.json": b""}.items():
        fs.pipe_file(f"{root}/{name}", data)

    folder = find_model(url)

    assert contents(folder) == files
    with pytest.raises(CheckpointError, match=r"FileNotFoundError: .*correct the URL"):
        find_model(f"{url}/nowhere")
    with pytest.raises(CheckpointError, match=r"install the driver|give a model folder"):
        find_model("nosuch://bucket/m")


def test_a_folder_of_links_is_fetched_as_what_they_lead_to(cache: Path, far: Path) -> None:
    links = far.parent / "snapshot"
    links.mkdir()
    for name in FILES:
        os.utime(far / name, (1e9, 1e9))
        (links / name).symlink_to(far / name)

    assert contents(find_model(f"file://{links}")) == FILES


def test_too_little_room_is_told_before_the_first_byte(
    web: FileServer, monkeypatch: pytest.MonkeyPatch, cache: Path
) -> None:
    free = os.statvfs_result((1, 1, 0, 0, 0, 0, 0, 0, 0, 255))
    with monkeypatch.context() as patch:
        patch.setattr("os.statvfs", lambda path: free)
        with pytest.raises(CheckpointError, match=r"where 0\.00 GB are free; make room .*BATON_MO"):
            find_model(f"{web.url}/m")
    assert web.fetched() == []


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
                raise Lost(f"{self.name}: gone")


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


@pytest.fixture
def far(tmp_path: Path) -> Path:
    (tmp_path / "far").mkdir()
    for name, data in FILES.items():
        (tmp_path / "far" / name).write_bytes(data)
    return tmp_path / "far"


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
